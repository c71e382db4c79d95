"""Turning one placement of a tensor into another: the cheapest sequence of slices and collectives.

What steps there are is in `moves`; here they are priced. The path is exact for the given costs. A search asks for
whole tables of costs, so what depends on less than (source, target, size, type) is worked out once: placements are
numbered, the graph of ways is shared by all pairs that differ in the same way, and whole tables are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from axograph.cost_model.protocol import Collective, Compute, CostModel
from axograph.grid import Grid
from axograph.passes.sharding.moves import FRONT, Aligned, Atom, Code, Move, Pattern, StepKind, Ways, align, find_ways
from axograph.placement import Placement, SubDim

__all__ = ["Atom", "Codes", "Path", "Resharder", "Step", "StepKind"]

Codes = npt.NDArray[np.intp]
"""Placements as the numbers that a `Resharder` gave them."""


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


class Resharder:
    """Plans reshards on one grid with one cost model."""

    def __init__(self, grid: Grid, model: CostModel) -> None:
        self.grid = grid
        self.model = model
        self._paths: dict[tuple[Placement, Placement, str, int], Path] = {}
        self._numbers: dict[Placement, int] = {}
        self._codes: list[Code] = []
        self._padding: list[float] = []
        """For each number, by how much padding lengthens a tensor that lies so."""
        self._code_numbers: dict[object, int] = {}
        self._ways: dict[Pattern, Ways] = {}
        self._bound: dict[tuple[Pattern, tuple[str, ...]], _Bound] = {}
        self._pairs: dict[tuple[int, int], tuple[_Bound, int]] = {}
        """For two numbers, the ways between them and by how many ranks the tensor is cut all the while."""
        self._prices: dict[tuple[int, str], dict[_Priced, float]] = {}
        self._tables: dict[tuple[bytes, bytes, int, str], npt.NDArray[np.float64]] = {}

    def path(self, source: Placement, target: Placement, dtype: str, element_bytes: int) -> Path:
        """The cheapest way from one placement of a tensor to another over the same atoms."""
        key = (source, target, dtype, element_bytes)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = self._plan(source, target, dtype, element_bytes)
        return found

    def cost_s(self, source: Placement, target: Placement, dtype: str, element_bytes: int) -> float:
        """The seconds of that way; infinite where there is none."""
        first, second = self.number([source, target])
        size_bytes = math.prod(source.shape) * element_bytes
        return self._cost_s(int(first), int(second), size_bytes, dtype)

    def number(self, placements: Iterable[Placement]) -> Codes:
        """The numbers of placements, equal for those that cut the same atoms by the same axes."""
        return np.array([self._number(placement) for placement in placements], dtype=np.intp)

    def table(self, sources: Codes, targets: Codes, size_bytes: int, dtype: str) -> npt.NDArray[np.float64]:
        """The seconds from each source to each target, for a whole tensor of this size."""
        rows, row = np.unique(sources, return_inverse=True)
        columns, column = np.unique(targets, return_inverse=True)
        key = (rows.tobytes(), columns.tobytes(), size_bytes, dtype)
        priced = self._tables.get(key)
        if priced is None:
            costs = [[self._cost_s(a, b, size_bytes, dtype) for b in columns.tolist()] for a in rows.tolist()]
            priced = self._tables[key] = np.array(costs)
        return priced[row[:, None], column[None, :]]

    def _number(self, placement: Placement) -> int:
        known = self._numbers.get(placement)
        if known is None:
            code, padding = Code.of(placement), self._lengthened(placement)
            key = (tuple(sorted(code.cuts.items())), code.pending, padding)
            known = self._code_numbers.setdefault(key, len(self._codes))
            if known == len(self._codes):
                self._codes.append(code)
                self._padding.append(padding)
            self._numbers[placement] = known
        return known

    def _lengthened(self, placement: Placement) -> float:
        """The elements of all parts over those of the tensor: more than 1 where a cut is uneven."""
        subs = (sub for dim in placement.dims for sub in dim if sub.axes)
        return math.prod(sub.local(self.grid) * self.grid.extent(sub.axes) / sub.size for sub in subs)

    def _cost_s(self, source: int, target: int, size_bytes: int, dtype: str) -> float:
        if source == target:
            return 0.0
        pair = self._pairs.get((source, target))
        if pair is None:
            aligned = align(self._codes[source], self._codes[target])
            pair = self._pairs[source, target] = (self._bind(aligned), self.grid.extent(aligned.common))
        bound, ranks = pair
        key = (int(size_bytes * max(self._padding[source], self._padding[target])) // ranks, dtype)
        cost_s = bound.costs_s.get(key)
        if cost_s is None:
            cost_s, _ = bound.ways.cheapest(self._prices_s(bound, *key))
            bound.costs_s[key] = cost_s
        return cost_s

    def _bind(self, aligned: Aligned) -> _Bound:
        """The ways of a pattern, with real axes."""
        key = (aligned.pattern, aligned.axes)
        known = self._bound.get(key)
        if known is None:
            ways = self._ways.get(aligned.pattern)
            if ways is None:
                ways = self._ways[aligned.pattern] = find_ways(aligned.pattern)
            known = self._bound[key] = _Bound(ways, [_priced(move, aligned.axes, self.grid) for move in ways.moves])
        return known

    def _plan(self, source: Placement, target: Placement, dtype: str, element_bytes: int) -> Path:
        aligned = align(Code.of(source), Code.of(target))
        bound = self._bind(aligned)
        padding = max(self._lengthened(source), self._lengthened(target))
        size_bytes = int(math.prod(source.shape) * element_bytes * padding) // self.grid.extent(aligned.common)
        prices_s = self._prices_s(bound, size_bytes, dtype)
        cost_s, way = bound.ways.cheapest(prices_s)
        if math.isinf(cost_s):
            return Path(None, cost_s)
        steps: list[Step] = []
        for number in way:
            move, priced = bound.ways.moves[number], bound.priced[number]
            before = steps[-1].after if steps else source
            from_ = None if move.source is None else aligned.atoms[move.source]
            to = None if move.target is None else aligned.atoms[move.target]
            step = Step(
                kind=move.kind,
                axes=priced.axes,
                source=from_,
                target=to,
                reduction=move.reduction,
                after=_after(before, move.kind, priced.axes, from_, to),
                collective=priced.collective(size_bytes),
                cost_s=prices_s[number],
            )
            steps.append(step)
        return Path(tuple(steps), cost_s)

    def _prices_s(self, bound: _Bound, size_bytes: int, dtype: str) -> list[float]:
        """The seconds of each move for a tensor of this size; each is asked of the cost model once."""
        known = self._prices.setdefault((size_bytes, dtype), {})
        found = []
        for priced in bound.priced:
            price_s = known.get(priced)
            if price_s is None:
                price_s = known[priced] = self._price_s(priced, size_bytes, dtype)
            found.append(price_s)
        return found

    def _price_s(self, priced: _Priced, size_bytes: int, dtype: str) -> float:
        copied = Compute(op=priced.kind, flops=0.0, size_bytes=2.0 * (size_bytes // priced.ranks), dtype=dtype)
        cost_s = self.model.compute_s(copied) if priced.copies else 0.0
        collective = priced.collective(size_bytes)
        return cost_s if collective is None else cost_s + self.model.collective_s(collective, self.grid)


class _Priced(NamedTuple):
    """All that the price of a move depends on, but for the tensor."""

    kind: StepKind
    axes: tuple[str, ...]
    ranks: int
    """Over how many ranks the side that counts is divided."""
    copies: bool
    """Whether parts, which lie one after the other, must be copied into or out of place."""

    def collective(self, size_bytes: int) -> Collective | None:
        """What the move communicates for a tensor of this size."""
        if self.kind == "slice":
            return None
        return Collective(kind=self.kind, axes=self.axes, size_bytes=size_bytes // self.ranks)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Ways between two placements of real axes."""

    ways: Ways
    priced: list[_Priced]
    """For each of the moves, what its price depends on."""
    costs_s: dict[tuple[int, str], float] = field(default_factory=dict)
    """The seconds of the cheapest way by size and type."""


def _priced(move: Move, axes: tuple[str, ...], grid: Grid) -> _Priced:
    real = tuple(axes[number] for number in move.axes)
    place = move.target if move.source is None else move.source
    in_front = move.kind in ("all_gather", "reduce_scatter") and place == FRONT
    copies = move.kind != "all_reduce" and not in_front
    return _Priced(move.kind, real, grid.extent(axes[number] for number in move.cut), copies)


def _after(
    before: Placement, kind: StepKind, axes: tuple[str, ...], source: Atom | None, target: Atom | None
) -> Placement:
    """The placement that a move leaves behind."""
    after = before
    if kind in ("all_reduce", "reduce_scatter"):
        after = replace(after, partial=tuple(item for item in after.partial if item[0] not in axes))
    if source is not None:
        after = _with(after, source, _axes(after, source)[:-1])
    if target is not None:
        after = _with(after, target, (*_axes(after, target), axes[0]))
    return after


def _axes(placement: Placement, atom: Atom) -> tuple[str, ...]:
    return placement.dims[atom[0]][atom[1]].axes


def _with(placement: Placement, atom: Atom, axes: tuple[str, ...]) -> Placement:
    dims = list(placement.dims)
    dim = list(dims[atom[0]])
    dim[atom[1]] = SubDim(dim[atom[1]].size, axes)
    dims[atom[0]] = tuple(dim)
    return replace(placement, dims=tuple(dims))
