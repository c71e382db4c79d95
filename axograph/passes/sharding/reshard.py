"""Turning one placement of a tensor into another: the cheapest sequence of slices and collectives.

The search is over states (which axes cut which atom, which are pending); each step moves one axis towards its
target or, where it blocks another, gathers it. The path is exact for the given costs and cached.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from axograph.cost_model.protocol import Collective, Compute, CostModel
from axograph.grid import Grid
from axograph.placement import Placement, SubDim

StepKind = Literal["slice", "all_gather", "reduce_scatter", "all_to_all", "all_reduce"]
Atom = tuple[int, int]
"""The (dim, sub-dim) that an axis cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a reshard."""

    kind: StepKind
    axes: tuple[str, ...]
    source: Atom | None = None
    """Where the axis cuts before: of an all-gather or all-to-all."""
    target: Atom | None = None
    """Where the axis cuts after: of a slice, reduce-scatter or all-to-all."""
    reduction: str = "sum"
    after: Placement
    """The placement once the step is done."""
    collective: Collective | None = None
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Path:
    """The steps of a reshard and their seconds; `steps` is None where there is no way."""

    steps: tuple[Step, ...] | None
    cost_s: float


_SAME = Path((), 0.0)
_IMPOSSIBLE = Path(None, math.inf)


class Resharder:
    """Plans reshards on one grid with one cost model."""

    def __init__(self, grid: Grid, model: CostModel) -> None:
        self.grid = grid
        self.model = model
        self._paths: dict[tuple[Placement, Placement, str, int], Path] = {}

    def path(self, source: Placement, target: Placement, dtype: str, element_bytes: int) -> Path:
        """The cheapest way from one placement of a tensor to another over the same atoms."""
        if source == target:
            return _SAME
        key = (source, target, dtype, element_bytes)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = self._search(source, target, dtype, element_bytes)
        return found

    def cost_s(self, source: Placement, target: Placement, dtype: str, element_bytes: int) -> float:
        """The seconds of that way; infinite where there is none."""
        return self.path(source, target, dtype, element_bytes).cost_s

    def _search(self, source: Placement, target: Placement, dtype: str, element_bytes: int) -> Path:
        pending = dict(source.partial)
        if any(pending.get(axis) != kind for axis, kind in target.partial):
            return _IMPOSSIBLE
        counter = itertools.count()
        heap: list[tuple[float, int, int, Placement, tuple[Step, ...]]] = [(0.0, 0, next(counter), source, ())]
        done: set[Placement] = set()
        while heap:
            cost_s, length, _, state, steps = heapq.heappop(heap)
            if state == target:
                return Path(steps, cost_s)
            if state in done:
                continue
            done.add(state)
            for step in self._steps(state, target, dtype, element_bytes):
                heapq.heappush(heap, (cost_s + step.cost_s, length + 1, next(counter), step.after, (*steps, step)))
        return _IMPOSSIBLE

    def _steps(self, state: Placement, target: Placement, dtype: str, element_bytes: int) -> Iterator[Step]:
        here, there = _homes(state), _homes(target)
        wanted = dict(target.partial)
        reduce_now: dict[str, list[str]] = {}
        for axis, kind in state.partial:
            if wanted.get(axis) == kind:
                continue
            reduce_now.setdefault(kind, []).append(axis)
            goal = there.get(axis)
            if goal is not None and kind == "sum" and _extends(state, target, goal, axis):
                after = replace(_with(state, goal, (*_axes(state, goal), axis)), partial=_without(state, (axis,)))
                yield self._priced("reduce_scatter", (axis,), None, goal, kind, state, after, dtype, element_bytes)
        for kind, axes in reduce_now.items():
            after = replace(state, partial=_without(state, axes))
            yield self._priced("all_reduce", tuple(axes), None, None, kind, state, after, dtype, element_bytes)
        for axis, home in here.items():
            last = _axes(state, home)[-1] == axis
            if not last or _is_prefix(_axes(state, home), _axes(target, home)):
                continue
            gathered = _with(state, home, _axes(state, home)[:-1])
            yield self._priced("all_gather", (axis,), home, None, "sum", state, gathered, dtype, element_bytes)
            goal = there.get(axis)
            if goal is not None and goal != home and _extends(state, target, goal, axis):
                after = _with(gathered, goal, (*_axes(state, goal), axis))
                yield self._priced("all_to_all", (axis,), home, goal, "sum", state, after, dtype, element_bytes)
        pending = dict(state.partial)
        for axis, goal in there.items():
            if axis not in here and axis not in pending and _extends(state, target, goal, axis):
                after = _with(state, goal, (*_axes(state, goal), axis))
                yield self._priced("slice", (axis,), None, goal, "sum", state, after, dtype, element_bytes)

    def _priced(
        self,
        kind: StepKind,
        axes: tuple[str, ...],
        source: Atom | None,
        target: Atom | None,
        reduction: str,
        before: Placement,
        after: Placement,
        dtype: str,
        element_bytes: int,
    ) -> Step:
        larger = max(before.local_elements(self.grid), after.local_elements(self.grid)) * element_bytes
        copied = Compute(op=kind, flops=0.0, size_bytes=2.0 * larger, dtype=dtype)
        collective = None
        cost_s = 0.0
        if kind == "slice":
            smaller = after.local_elements(self.grid) * element_bytes
            cost_s = self.model.compute_s(replace(copied, size_bytes=2.0 * smaller))
        else:
            collective = Collective(kind=kind, axes=axes, size_bytes=larger)
            cost_s = self.model.collective_s(collective, self.grid)
            if kind != "all_reduce" and _moves_data(kind, source, target):
                cost_s += self.model.compute_s(copied)
        return Step(
            kind=kind,
            axes=axes,
            source=source,
            target=target,
            reduction=reduction,
            after=after,
            collective=collective,
            cost_s=cost_s,
        )


def _moves_data(kind: StepKind, source: Atom | None, target: Atom | None) -> bool:
    """Whether the collective's parts, which lie one after the other, must be copied into or out of place."""
    return kind == "all_to_all" or (source or target) != (0, 0)


def _homes(placement: Placement) -> dict[str, Atom]:
    return {axis: (d, s) for d, dim in enumerate(placement.dims) for s, sub in enumerate(dim) for axis in sub.axes}


def _axes(placement: Placement, atom: Atom) -> tuple[str, ...]:
    return placement.dims[atom[0]][atom[1]].axes


def _with(placement: Placement, atom: Atom, axes: tuple[str, ...]) -> Placement:
    dims = list(placement.dims)
    dim = list(dims[atom[0]])
    dim[atom[1]] = SubDim(dim[atom[1]].size, axes)
    dims[atom[0]] = tuple(dim)
    return replace(placement, dims=tuple(dims))


def _without(placement: Placement, axes: tuple[str, ...] | list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((axis, kind) for axis, kind in placement.partial if axis not in axes)


def _is_prefix(axes: tuple[str, ...], of: tuple[str, ...]) -> bool:
    return of[: len(axes)] == axes


def _extends(state: Placement, target: Placement, atom: Atom, axis: str) -> bool:
    """Whether cutting this atom by the axis next leads towards the target."""
    return _is_prefix((*_axes(state, atom), axis), _axes(target, atom))
