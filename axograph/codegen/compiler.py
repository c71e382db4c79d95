"""The pipeline from a model and its inputs to a split program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from axograph.capture.program import Program
from axograph.capture.structure import Structure
from axograph.capture.trace import capture
from axograph.cost_model.protocol import CostModel
from axograph.errors import InputError
from axograph.grid import Grid
from axograph.passes.localize import Localize
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.shard import Shard
from axograph.passes.simplify import Simplify
from axograph.passes.split import Split
from axograph.pipeline import Observer, Pass, Stage, Stages, run
from axograph.placement import Placement

Outputs = Literal["auto", "full", "sharded"]
"""How outputs that are no scalars are returned: in full, as they lie on the grid, or in full unless there is a loss."""

Pipeline = Callable[[Sequence[Pass]], Sequence[Pass]]
"""Changes the standard passes: inserts, replaces or drops some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Everything that compilation depends on, but the model and its inputs."""

    grid: Grid
    cost_model: CostModel
    scheme: str | None = None
    batch_dims: Mapping[str, int | None] = field(default_factory=dict)
    outputs: Outputs = "auto"
    device: torch.device | None = None
    pipeline: Pipeline | None = None
    observers: tuple[Observer, ...] = ()
    stored: dict[str, Placement] = field(default_factory=dict)
    """Where earlier programs stored the parameters: later ones find them there."""

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
        return run(program, self.passes(program, tensors, structure), stages, self.observers)

    def passes(self, program: Program, tensors: Sequence[torch.Tensor], structure: Structure) -> Sequence[Pass]:
        """The passes after capture, as the user's pipeline changed them."""
        shard = Shard(
            grid=self.grid,
            cost_model=self.cost_model,
            scheme=self.scheme,
            batch_dims=self._batch_dims(tensors, structure),
            full_outputs=self._full_outputs(program),
            stored=dict(self.stored),
        )
        localize = Localize(grid=self.grid, cost_model=self.cost_model)
        standard: tuple[Pass, ...] = (Normalize(), shard, localize, Simplify(), Split())
        return self.pipeline(standard) if self.pipeline is not None else standard

    def _full_outputs(self, program: Program) -> bool:
        if self.outputs != "auto":
            return self.outputs == "full"
        shapes = {d.target: r for r, d in zip(program.results(), program.outputs, strict=True) if d.kind == "user"}
        has_loss = any(
            node is not None and node.meta["val"].dim() == 0 and node.meta["val"].is_floating_point()
            for node in shapes.values()
        )
        return not has_loss

    def _batch_dims(self, tensors: Sequence[torch.Tensor], structure: Structure) -> dict[int, int | None]:
        """The dim of each input that carries the batch: as told, or dim 0 where it has the first input's size."""
        names = [path.partition(".")[2] for path in structure.paths()]
        unknown = sorted(set(self.batch_dims) - set(names))
        if unknown:
            raise InputError(
                f"batch_dims names an input that there is not: {unknown[0]!r}",
                asked=f"batch_dims={dict(self.batch_dims)!r}",
                given=f"the inputs {', '.join(names)}",
                rule="each name is a keyword, or the position, of a tensor in the call",
                remedy="correct the name, or leave batch_dims out: the batch is dim 0 of the first input by default",
            )
        told = {i: self.batch_dims[name] for i, name in enumerate(names) if name in self.batch_dims}
        sizes = [tensors[i].shape[dim] for i, dim in told.items() if dim is not None]
        sizes += [tensor.shape[0] for i, tensor in enumerate(tensors) if tensor.dim() and i not in told]
        found: dict[int, int | None] = {}
        for i, tensor in enumerate(tensors):
            has_it = bool(sizes) and tensor.dim() > 0 and tensor.shape[0] == sizes[0]
            found[i] = told.get(i, 0 if has_it else None)
        return found
