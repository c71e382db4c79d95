"""The pipeline from a model and its inputs to a split program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import nn

from axograph.capture.program import Program
from axograph.capture.structure import Structure
from axograph.capture.trace import capture
from axograph.codegen.batch_dims import batch_dims
from axograph.cost_model.protocol import CostModel
from axograph.errors import AxographError
from axograph.grid import Grid
from axograph.passes.chunking.chunk import Chunk, Chunks
from axograph.passes.group_heads import GroupHeads
from axograph.passes.localize import Localize
from axograph.passes.normalize import Normalize
from axograph.passes.recognize_causal import RecognizeCausal
from axograph.passes.recompute_pointwise import RecomputePointwise
from axograph.passes.remat import Remat
from axograph.passes.scheduling.buckets import BucketCollectives
from axograph.passes.scheduling.schedule import Schedule
from axograph.passes.sharding.constraints import Entry
from axograph.passes.sharding.decision import Once
from axograph.passes.sharding.shard import Shard
from axograph.passes.simplify import Simplify
from axograph.passes.split import Split
from axograph.passes.unsort_experts import UnsortExperts
from axograph.pipeline import Observer, Pass, Stage, Stages, run
from axograph.placement import Placement

Outputs = Literal["auto", "full", "sharded"]
"""How outputs that are no scalars are returned: in full unless there is a loss, in full, or as they lie on the grid."""

Pipeline = Callable[[Sequence[Pass]], Sequence[Pass]]
"""Changes the standard passes: inserts, replaces or drops some."""


def check_outputs(asked: object) -> None:
    """Raise `AxographError` for an unknown way to return outputs."""
    if asked not in get_args(Outputs):
        raise AxographError(
            f"no way to return outputs is called {asked!r}",
            asked=f"outputs={asked!r}",
            given="outputs that are no scalars",
            rule='outputs is "full", "sharded" (as they lie on the grid) or "auto" ("full" unless there is a loss)',
            remedy='outputs="auto"',
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Everything that compilation depends on, but the model and its inputs."""

    grid: Grid
    cost_model: CostModel
    scheme: str | None = None
    entries: tuple[Entry, ...] = ()
    """What the user's plan asks of matmuls."""
    once: Once | None = None
    """Searches on one rank, for all; None: this rank searches."""
    batch_dims: Mapping[str, int | None] = field(default_factory=dict)
    outputs: Outputs = "auto"
    device: torch.device | None = None
    chunks: Chunks = "auto"
    """In how many chunks each rank works on its batch."""
    overlap: bool = True
    """Whether the passes run that let ranks compute while collectives are under way."""
    compiled: bool = False
    """Whether Inductor compiles what lies between collectives."""
    pipeline: Pipeline | None = None
    observers: tuple[Observer, ...] = ()
    memory_bytes: float = math.inf
    """The most that a rank may hold during a step."""
    remat: Remat = "none"
    """What backward recomputes, beside the checkpointed calls of the model."""
    stored: dict[str, Placement] = field(default_factory=dict)
    """Where earlier programs, or the user's plan, stored the parameters: later ones find them there."""

    def compile(
        self, model: nn.Module, tensors: Sequence[torch.Tensor], structure: Structure, wide: bool, stages: Stages
    ) -> Program:
        """The split program of a call of the model; each stage is kept in `stages`."""
        args, kwargs = structure.unflatten(tensors)
        start_s = time.perf_counter()
        program = capture(model, args, kwargs, device=self.device, differentiable="all" if wide else "loss")
        first = Stage(name="capture", program=program, time_s=time.perf_counter() - start_s)
        stages.add(first)
        for observe in self.observers:
            observe(first)
        dims = batch_dims(self.batch_dims, model, tensors, structure)
        return run(program, self.passes(program, dims), stages, self.observers)

    def passes(self, program: Program, dims: Mapping[int, int | None]) -> Sequence[Pass]:
        """The passes after capture, as the user's pipeline changed them."""
        shard = Shard(
            grid=self.grid,
            cost_model=self.cost_model,
            scheme=self.scheme,
            batch_dims=dims,
            full_outputs=self._full_outputs(program),
            stored=dict(self.stored),
            entries=self.entries,
            once=self.once,
            memory_bytes=self.memory_bytes,
            remat=self.remat,
        )
        localize = Localize(grid=self.grid, cost_model=self.cost_model)
        standard: tuple[Pass, ...] = (
            Normalize(),
            UnsortExperts(),
            GroupHeads(),
            RecognizeCausal(),
            shard,
            localize,
            Simplify(),
            *self._chunk(dims),
            Split(grid=self.grid, cost_model=self.cost_model, remat=self.remat, memory_bytes=self.memory_bytes),
        )
        if self.overlap:
            standard += (
                BucketCollectives(grid=self.grid, cost_model=self.cost_model, memory_bytes=self.memory_bytes),
                Schedule(grid=self.grid, cost_model=self.cost_model, memory_bytes=self.memory_bytes),
            )
        if self.compiled:
            standard += (RecomputePointwise(),)
        return self.pipeline(standard) if self.pipeline is not None else standard

    def _chunk(self, dims: Mapping[int, int | None]) -> tuple[Pass, ...]:
        """Chunks are there to overlap: without overlap only those that are asked for."""
        if self.chunks == "auto" and not self.overlap:
            return ()
        return (
            Chunk(
                grid=self.grid,
                cost_model=self.cost_model,
                chunks=self.chunks,
                batch_dims=dims,
                memory_bytes=self.memory_bytes,
            ),
        )

    def _full_outputs(self, program: Program) -> bool:
        if self.outputs != "auto":
            return self.outputs == "full"
        shapes = {d.target: r for r, d in zip(program.results(), program.outputs, strict=True) if d.kind == "user"}
        has_loss = any(
            node is not None and node.meta["val"].dim() == 0 and node.meta["val"].is_floating_point()
            for node in shapes.values()
        )
        return not has_loss
