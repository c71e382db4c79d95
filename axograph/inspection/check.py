"""`check`: everything about a model that will not be cut as one might expect, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from axograph.capture.program import Program, facts
from axograph.capture.trace import capture
from axograph.cost_model import Collective, CostModel, RingModel
from axograph.errors import UnsupportedError
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.arguments import is_pick, tensor_arguments
from axograph.passes.sharding.rules import rule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know about one operator of the model."""

    kind: str
    """"gathered": it has no rule and runs on whole inputs; "undivided": no axis of this size divides its dims;
    "refused": it cannot be compiled."""
    what: str
    """The operator, or the parameter."""
    where: str
    """The module and the line of the model."""
    cost_s: float = 0.0
    """Seconds that gathering its inputs takes at most, under the cost model."""
    detail: str = ""

    def __str__(self) -> str:
        cost = f", at most {self.cost_s:.2g} s to gather" if self.cost_s else ""
        return f"{self.kind:<10} {self.what}{cost}  {self.where}{f'  {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `check` found."""

    grid: Grid
    operators: int
    """The number of operators, forward and backward, that were looked at."""
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        header = f"{self.operators} operators on grid {self.grid}: {len(self.findings) or 'no'} findings"
        return "\n".join([header, *(f"  {finding}" for finding in self.findings)])


def check(
    model: nn.Module,
    inputs: tuple[Any, ...] | Mapping[str, Any],
    grid: Grid | Sequence[int],
    *,
    cost_model: CostModel | None = None,
) -> Report:
    """Look at every operator of a model, without searching or compiling.

    `inputs` are positional (a tuple) or keyword (a mapping) inputs, real or meta. Raises `GridError` and
    `CaptureError` as `parallelize` does.
    """
    whole = Grid.of(grid)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (inputs, {})
    program = capture(model, args, kwargs)
    try:
        program = Normalize().run(program)
    except UnsupportedError as error:
        return Report(grid=whole, operators=_count(program), findings=(_refusal(error),))
    prices = cost_model if cost_model is not None else RingModel()
    findings = [*_gathered(program, whole, prices), *_undivided(program, whole)]
    return Report(grid=whole, operators=_count(program), findings=tuple(findings))


def _operators(program: Program) -> list[fx.Node]:
    return [node for node in program.graph.nodes if node.op == "call_function" and not is_pick(node)]


def _count(program: Program) -> int:
    return len(_operators(program))


def _refusal(error: UnsupportedError) -> Finding:
    return Finding(kind="refused", what=error.summary, where=error.given, detail=error.remedy)


def _gathered(program: Program, grid: Grid, model: CostModel) -> list[Finding]:
    """The operators without a rule, and what gathering all of their inputs over the whole grid costs at most."""
    found = []
    for node in _operators(program):
        if rule_of(node).known:
            continue
        tensors = [argument.meta["val"] for argument in tensor_arguments(node)]
        cost_s = sum(_gather_s(tensor, grid, model) for tensor in tensors)
        found.append(Finding(kind="gathered", what=str(node.target), where=_where(node), cost_s=cost_s))
    return found


def _gather_s(tensor: torch.Tensor, grid: Grid, model: CostModel) -> float:
    size = float(tensor.numel() * tensor.element_size())
    total_s = 0.0
    for axis in grid.cut_axes:
        total_s += model.collective_s(Collective(kind="all_gather", axes=(axis,), size_bytes=size), grid)
    return total_s


def _undivided(program: Program, grid: Grid) -> list[Finding]:
    """The matmuls that an axis divides in none of their dims."""
    found = []
    for node in _operators(program):
        if node.target is not torch.ops.aten.mm.default or facts(node).phase != "forward":
            continue
        sizes = rule_of(node).sizes
        idle = [axis for axis in grid.cut_axes if all(size % grid[axis] for size in sizes.values())]
        if idle:
            dims = ", ".join(f"{name}={size}" for name, size in sizes.items())
            detail = f"{', '.join(f'{axis}={grid[axis]}' for axis in idle)} divides none of {dims}"
            found.append(Finding(kind="undivided", what=str(node.target), where=_where(node), detail=detail))
    return found


def _where(node: fx.Node) -> str:
    about = facts(node)
    return f"{about.path or 'the model'} ({about.source})" if about.source else about.path or "the model"
