"""`parallelize`: the one call that users make."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from axograph.capture.structure import Structure
from axograph.codegen.compiler import Compiler, Outputs, Pipeline, check_outputs
from axograph.codegen.module import ParallelModule
from axograph.cost_model import CostModel, RingModel
from axograph.errors import AxographError, GridError
from axograph.grid import Grid
from axograph.passes.chunking.chunk import check_chunks
from axograph.passes.remat import Remat, known_remat
from axograph.passes.sharding.constraints import Constraints, UserPlan
from axograph.passes.sharding.schemes import Scheme
from axograph.pipeline import Observer
from axograph.runtime.engine import Engine, OneRank
from axograph.runtime.inductor import Inductor
from axograph.runtime.virtual_grid import VirtualGrid


def parallelize(
    model: nn.Module,
    grid: Grid | Sequence[int],
    *,
    scheme: str | None = None,
    plan: UserPlan | None = None,
    cost_model: CostModel | None = None,
    sample_inputs: tuple[Any, ...] | Mapping[str, Any] | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
    outputs: Outputs = "auto",
    memory_bytes: float | None = None,
    chunks: int | Literal["auto"] = "auto",
    remat: Remat = "none",
    overlap: bool = True,
    compile: bool = False,
    pipeline: Pipeline | None = None,
    observers: Sequence[Observer] = (),
) -> ParallelModule:
    """Turn an unmodified module into one that runs on a grid of ranks.

    With a process group (torchrun and `torch.distributed.init_process_group`), every rank makes this call with the
    same model; the module's parameters become DTensors, with the values of rank 0. Without one, all ranks run in
    this process, on the virtual grid, with ordinary tensors. The model is taken over, not copied.

    Every rank calls the result with the same global batch and takes its own part of it. A scalar output is that of
    the whole batch. Other outputs are DTensors where there is a scalar (a loss) among the outputs, and full tensors
    where there is none; `outputs` = "full" or "sharded" states it.

    Args:
        model: any `nn.Module` that `torch.export` can trace; it may be on the meta device.
        grid: the numbers of ranks along the axes (x, y, z, data).
        scheme: "axonn", "megatron", "fsdp" or "ddp" pins a classic layout; None searches for the cheapest.
        plan: placements by module path, such as {"layers.*.mlp.up_proj": "n/x k/y", "*.q_proj": "colwise"}, that the
            search keeps to; or a whole `Plan`, or the path of its file, to be reproduced.
        cost_model: any object with the methods of `CostModel`; by default rings on Perlmutter's links.
        sample_inputs: positional (tuple) or keyword (mapping) inputs to compile for now rather than at the first call.
        batch_dims: the dim that carries the batch, by the name or position of an input; None for an input without one.
        outputs: how outputs that are no scalars are returned: "full" (whole tensors), "sharded" (as they lie on the
            grid, DTensors under a process group), or "auto" (full where no output is a scalar, else sharded).
        memory_bytes: the most that a rank may hold during a step of training with AdamW; None for the memory of the
            cost model's machine.
        chunks: in how many chunks, one after the other, a rank works on its part of the batch, so that one computes
            while another's collectives run; sums over the batch are then sums of the chunks' sums. "auto" for one, two
            or four, whatever is fastest under the cost model; for one without overlap.
        remat: what backward recomputes rather than being given it, beside what the model itself runs under
            `torch.utils.checkpoint`: "none", the insides of the model's numbered layers ("block"), or as little as fits
            into `memory_bytes` ("auto").
        overlap: whether collectives run while ranks compute. False leaves out the passes that only serve that: every
            collective stays by itself, where its result is needed, and is waited for at once. With the same `chunks`
            numbers are the same to the last bit either way, but for sums over ranks that the process group's library
            adds up in another order where collectives are joined.
        compile: hand what lies between collectives to Inductor, at the first call; the order of collectives stays.
            Numbers are those of the operators run one by one, but for rounding. On the virtual grid there is nothing to
            compile for, and a warning is logged.
        pipeline: a function from the standard passes to those to run.
        observers: called with each `Stage` as it is made.

    Raises:
        AxographError: the cost model lacks methods, `outputs` or `remat` is unknown, or the machine has no compiler for
            compile=True. All others are kinds of it.
        GridError: the grid is not four positive integers, or does not have as many ranks as the process group.
        PlanError: the scheme is unknown, the plan names what the model does not have, or `chunks` is no number; and,
            when compiling, where an entry of the plan divides nothing, or contradicts another one or the scheme, no
            plan fits into memory, or a rank's batch does not fall into that many chunks.
        CaptureError, InputError, UnsupportedError, AgreementError: at the first call, or now with `sample_inputs`.

    >>> pm = parallelize(nn.Linear(4, 2), grid=(2, 1, 1, 1))
    >>> pm(torch.ones(2, 4)).shape
    torch.Size([2, 2])
    """
    whole = Grid.of(grid)
    Scheme.named(scheme)
    check_outputs(outputs)
    check_chunks(chunks)
    known_remat(remat)
    if cost_model is not None and not isinstance(cost_model, CostModel):
        raise AxographError(
            f"{type(cost_model).__name__} is not a cost model",
            asked=f"cost_model={cost_model!r}",
            given=f"an object with {', '.join(n for n in dir(cost_model) if not n.startswith('_')) or 'no methods'}",
            rule="a cost model has the methods compute_s(work), collective_s(collective, grid) and hold_s(size_bytes)",
            remedy="axograph.cost_model.RingModel(), or add the missing methods",
        )
    asked = Constraints.of(plan, whole, scheme, model)
    device = _device(model)
    engine = _engine(whole, device, compile)
    priced = cost_model if cost_model is not None else RingModel()
    compiler = Compiler(
        grid=whole,
        cost_model=priced,
        scheme=asked.scheme,
        entries=asked.entries,
        stored=dict(asked.stored),
        once=engine.once,
        batch_dims=dict(batch_dims or {}),
        outputs=outputs,
        memory_bytes=getattr(priced, "memory_bytes", math.inf) if memory_bytes is None else memory_bytes,
        device=device,
        chunks=chunks,
        remat=remat,
        overlap=overlap,
        compiled=compile and not isinstance(engine, VirtualGrid),
        pipeline=pipeline,
        observers=tuple(observers),
    )
    module = ParallelModule(model, compiler, engine)
    if sample_inputs is not None:
        args, kwargs = ((), dict(sample_inputs)) if isinstance(sample_inputs, Mapping) else (sample_inputs, {})
        module.compile_for(*Structure.flatten((args, kwargs)))
    return module


def _engine(grid: Grid, device: torch.device, compile: bool) -> Engine:
    if dist.is_available() and dist.is_initialized():
        from axograph.runtime.process_grid import ProcessGrid

        return ProcessGrid(grid, device, Inductor(device) if compile else None)
    if grid.size == 1:
        return OneRank(Inductor(device) if compile else None)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise GridError(
            "torchrun started several processes, and there is no process group",
            asked=f"grid {grid}",
            given=f"WORLD_SIZE={os.environ['WORLD_SIZE']} and no call of init_process_group",
            rule="ranks on several processes communicate through the default process group",
            remedy='torch.distributed.init_process_group("gloo") (or "nccl") before parallelize',
        )
    logging.getLogger("axograph").warning(
        "no process group: the %d ranks of the grid (%s) run in this process, on the virtual grid", grid.size, grid
    )
    if compile:
        logging.getLogger("axograph").warning("compile=True changes nothing on the virtual grid: it is for real ranks")
    return VirtualGrid(grid)


def _device(model: nn.Module) -> torch.device:
    """Where the model runs: where its tensors are; for one on the meta device, where the process group communicates."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type != "meta":
            return tensor.device
    if dist.is_available() and dist.is_initialized() and "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
