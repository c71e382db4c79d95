"""`check`: everything about a model that will not be cut as one might expect, before anything is compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any, TypeVar

from torch import fx, nn

from axograph.capture.program import DTYPE_NAMES, Program, facts
from axograph.capture.structure import Structure
from axograph.capture.trace import capture
from axograph.codegen.batch_dims import batch_dims as find_batch_dims
from axograph.codegen.compiler import Compiler
from axograph.cost_model import CostModel, RingModel
from axograph.errors import GridError, PlanError, UnsupportedError
from axograph.explanation import duration
from axograph.grid import Grid
from axograph.passes.sharding.arguments import is_pick, resolve, tensor_arguments
from axograph.passes.sharding.constraints import Constraints, UserPlan
from axograph.passes.sharding.reshard import Step
from axograph.passes.sharding.rule import Strategy
from axograph.passes.sharding.search import Search
from axograph.passes.sharding.shard import Shard
from axograph.passes.sharding.strategies import Cut
from axograph.pipeline import Stages, run
from axograph.placement import Placement
from axograph.plan_difference import unnumbered_layers

T = TypeVar("T")

KINDS = {
    "refused": "cannot be compiled",
    "gathered": "run on whole inputs, or on inputs that are whole along some dims",
    "replicated": "along some axes, all ranks do the same",
    "padded": "cut unevenly: the last parts are padded",
}
"""What may be found, and what it means."""

LEAST_SHARE = 0.001
"""Operators that cost less than this part of a step are counted, not listed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know about some operators of the model: of one module, or of the same one in several layers."""

    kind: str
    """"refused", "gathered", "replicated" or "padded"; `KINDS` has what they mean."""
    what: str
    """The operators, the dearest first, or the parameter; what is refused."""
    where: str
    """The modules, numbers of layers as "*"."""
    source: str = ""
    """The line of the model that the dearest comes from, as "file.py:12, y = self.up(x)"."""
    count: int = 1
    """The number of such operators, forward and backward."""
    cost_s: float = 0.0
    """Seconds of a step that it costs under the cost model, for all of them: to gather, to repeat, or on padding."""
    share: float = 0.0
    """The same as a part of the step, 0 to 1."""
    detail: str = ""
    """Why, with the sizes."""

    def __str__(self) -> str:
        if self.kind == "refused":
            return f"{self.what}\n  given  {self.where}\n  try    {self.detail}"
        cost = f"{self.share:6.1%} {duration(self.cost_s):>8}  " if self.cost_s else ""
        times = f"{self.count} x " if self.count > 1 else ""
        line = f"{cost}{self.where}: {times}{self.what}{f', {self.detail}' if self.detail else ''}"
        return f"{line}\n{'':17}{self.source}" if self.source else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `check` found."""

    grid: Grid
    operators: int
    """The number of operators, forward and backward, that were looked at."""
    findings: tuple[Finding, ...]
    """The dearest first."""
    cost_s: float | None = None
    """Seconds of a step under the plan that the search finds, nothing overlapped; None where there is none."""

    def of(self, kind: str) -> tuple[Finding, ...]:
        """The findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def __str__(self) -> str:
        step = f", {duration(self.cost_s)} a step before overlap" if self.cost_s is not None else ""
        count = f"{len(self.findings) or 'no'} finding{'s' if len(self.findings) != 1 else ''}"
        lines = [f"{self.operators} operators on grid {self.grid}{step}: {count}"]
        for kind, meaning in KINDS.items():
            found = self.of(kind)
            if found:
                lines += [f"  {kind} ({meaning})", *(indent(str(finding), "    ") for finding in found)]
        return "\n".join(lines)


def check(
    model: nn.Module,
    inputs: tuple[Any, ...] | Mapping[str, Any],
    grid: Grid | Sequence[int],
    *,
    scheme: str | None = None,
    plan: UserPlan | None = None,
    cost_model: CostModel | None = None,
    batch_dims: Mapping[str, int | None] | None = None,
) -> Report:
    """Look at every operator of a model as the search places it, without compiling.

    `inputs` are positional (a tuple) or keyword (a mapping) inputs, real or meta; the other options are those of
    `parallelize`. What the passes refuse is a finding. Raises `GridError` for what is no grid, `CaptureError` where
    the model cannot be captured at all.
    """
    whole = Grid.of(grid)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (inputs, {})
    program = capture(model, args, kwargs)
    tensors, structure = Structure.flatten((args, kwargs))
    try:
        asked = Constraints.of(plan, whole, scheme, model)
        compiler = Compiler(
            grid=whole,
            cost_model=cost_model if cost_model is not None else RingModel(),
            scheme=asked.scheme,
            entries=asked.entries,
            stored=dict(asked.stored),
        )
        dims = find_batch_dims(dict(batch_dims or {}), model, tensors, structure)
        passes = list(compiler.passes(program, dims))
        (shard,) = (step for step in passes if isinstance(step, Shard))
        program = run(program, passes[: passes.index(shard) + 1], Stages())
    except (GridError, PlanError, UnsupportedError) as error:
        return Report(grid=whole, operators=len(_operators(program)), findings=(_refusal(error),))
    assert program.plan is not None
    found = tuple(_Look(shard.search(program), program.plan.cost_s).findings())
    return Report(grid=whole, operators=len(_operators(program)), findings=found, cost_s=program.plan.cost_s)


def _operators(program: Program) -> list[fx.Node]:
    return [node for node in program.graph.nodes if node.op == "call_function" and not is_pick(node)]


def _refusal(error: GridError | PlanError | UnsupportedError) -> Finding:
    return Finding(kind="refused", what=error.summary, where=error.given, detail=error.remedy)


def _together(paths: list[str]) -> str:
    """Paths of one pattern as one, "*" where they differ."""
    parts = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(names[0] if len(set(names)) == 1 else "*" for names in parts)


@dataclass(slots=True)
class _Row:
    """Operators that are one finding, the dearest of them first."""

    kind: str
    detail: str
    costs_s: list[float] = field(default_factory=list)
    names: dict[str, float] = field(default_factory=dict)
    """What they are, each with its seconds."""
    places: dict[tuple[str, str], float] = field(default_factory=dict)
    """The paths and lines that they come from, each with its seconds."""

    def add(self, name: str, path: str, source: str, cost_s: float) -> None:
        """Count one more."""
        self.costs_s.append(cost_s)
        self.names[name] = self.names.get(name, 0.0) + cost_s
        self.places[path, source] = self.places.get((path, source), 0.0) + cost_s

    def join(self, other: _Row) -> None:
        """Count all that another row counts."""
        self.costs_s += other.costs_s
        for name, cost_s in other.names.items():
            self.names[name] = self.names.get(name, 0.0) + cost_s
        self.places |= other.places

    def finding(self, step_s: float) -> Finding:
        """The finding that it is, in a step of so many seconds."""
        cost_s = sum(self.costs_s)
        return Finding(
            kind=self.kind,
            what=_listed(_dearest(self.names)),
            where=self._where(),
            source=next((source for _, source in _dearest(self.places) if source), ""),
            count=len(self.costs_s),
            cost_s=cost_s,
            share=cost_s / step_s if step_s else 0.0,
            detail=self.detail,
        )

    def _where(self) -> str:
        """The paths, those of the dearest operators first, numbered layers as one."""
        paths: dict[str, list[str]] = defaultdict(list)
        for path, _ in _dearest(self.places):
            paths[unnumbered_layers(path)].append(path)
        return _listed([_together(alike) or "the model" for alike in paths.values()])


def _dearest(costs_s: Mapping[T, float]) -> list[T]:
    return sorted(costs_s, key=lambda name: -costs_s[name])


def _listed(texts: list[str]) -> str:
    more = len(texts) - 3
    return ", ".join(texts[:3]) + (f" and {more} more" if more > 0 else "")


class _Look:
    """Goes through a program with its placements."""

    def __init__(self, search: Search, step_s: float) -> None:
        self.search = search
        self.survey = search.survey
        self.grid = search.survey.grid
        self.step_s = step_s
        self.rows: dict[tuple[str, ...], _Row] = {}

    def findings(self) -> Iterator[Finding]:
        """What there is to know, the dearest first; operators that repeat little in one row."""
        for node in self.survey.nodes:
            self._operator(node)
        for declared in self.survey.placeholders.values():
            if declared.kind == "parameter" and declared.placement is not None:
                self._parameter(str(declared.target), declared.placement.simplified(self.grid))
        little = _Row("replicated", f"less than {LEAST_SHARE:.1%} of a step at each place")
        for row in sorted(self.rows.values(), key=lambda row: -sum(row.costs_s)):
            if row.kind == "replicated" and sum(row.costs_s) < LEAST_SHARE * self.step_s:
                little.join(row)
            else:
                yield row.finding(self.step_s)
        if little.costs_s:
            yield little.finding(self.step_s)

    def _row(self, kind: str, apart: str, detail: str) -> _Row:
        return self.rows.setdefault((kind, apart, detail), _Row(kind, detail))

    def _operator(self, node: fx.Node) -> None:
        rule, strategy, about = self.survey.rules[node], facts(node).strategy, facts(node)
        assert isinstance(strategy, Strategy)
        name = str(node.target).removesuffix(".default")
        if not rule.known:
            row = self._row("gathered", f"{name} {unnumbered_layers(about.path)}", "it has no rule")
            row.add(name, about.path, about.source, sum(step.cost_s for step in self._steps(node, strategy)))
        if not rule.known or rule.is_view:
            return
        gathers_s = [step.cost_s for step in self._steps(node, strategy) if step.kind in ("all_gather", "all_to_all")]
        if rule.whole and gathers_s:
            whole = " ".join(f"{factor}={rule.sizes[factor]}" for factor in rule.sizes if factor in rule.whole)
            row = self._row("gathered", f"{name} {unnumbered_layers(about.path)}", f"it needs {whole} whole")
            row.add(name, about.path, about.source, sum(gathers_s))
        cost_s = self.search.states.compute_s(node, rule, strategy)
        idle = tuple(axis for axis in self.grid.cut_axes if strategy.chosen.get(axis) is None)
        if idle:
            row = self._row("replicated", unnumbered_layers(about.path), self._why(node, idle))
            row.add(name, about.path, about.source, cost_s * (1 - 1 / self.grid.extent(idle)))
        for size, axes in strategy.parts:
            ranks = self.grid.extent(axes)
            local = -(-size // ranks)
            if size % ranks:
                row = self._row("padded", "operators", f"{size}/{'.'.join(axes)}: {local} on each of {ranks} ranks")
                row.add(name, about.path, about.source, cost_s * (1 - size / (local * ranks)))

    def _parameter(self, name: str, placed: Placement) -> None:
        if not placed.is_even(self.grid):
            self._row("padded", unnumbered_layers(name), f"stored {placed}").add("parameter", name, "", 0.0)

    def _steps(self, node: fx.Node, strategy: Strategy) -> Iterator[Step]:
        """What brings the inputs of an operator from where they are made."""
        for argument, target in zip(tensor_arguments(node), strategy.inputs, strict=True):
            maker, output = resolve(argument)
            made = facts(maker).strategy
            source = made.outputs[output] if isinstance(made, Strategy) else facts(maker).placements[output]
            tensor = argument.meta["val"]
            assert source is not None
            dtype = DTYPE_NAMES.get(tensor.dtype, "f32")
            yield from self.search.resharder.path(source, target, dtype, tensor.element_size()).steps or ()

    def _why(self, node: fx.Node, idle: tuple[str, ...]) -> str:
        """Why axes cut nothing of an operator."""
        options = self.survey.options[node]
        names = " ".join(f"{axis}={self.grid[axis]}" for axis in idle)
        if not options.units:
            return f"{names}: it needs its inputs whole, or has one element"
        if any(options.strategy({axis: Cut(u)}, self.grid) for axis in idle for u in options.units):
            return f"{names}: to repeat it costs less than to cut it"
        sizes = ", ".join(dict.fromkeys(f"{unit.factor}={unit.size}" for unit in options.units))
        return f"{names} divides none of {sizes}"
