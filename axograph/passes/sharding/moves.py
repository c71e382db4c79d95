"""The ways from one pattern of cuts to another, whatever the sizes: a small graph of states and moves.

A state says which axes cut which place and which reductions are pending. Each move brings one axis nearer to where it
must be: it reduces, cuts as the target does, or gathers what stands in the way. So no way returns to a state, and the
graph has an order in which the cheapest way follows by one pass (`Ways.cheapest`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from axograph.placement import Placement

StepKind = Literal["slice", "all_gather", "reduce_scatter", "all_to_all", "all_reduce"]
Atom = tuple[int, int]
"""The (dim, sub-dim) that an axis cuts."""

FRONT = 0
"""The place of the outermost atom of the first dim: parts of it lie one after the other in memory."""


class State(NamedTuple):
    """The axes that cut each place, and what is pending; a tuple, because states are hashed often."""

    cuts: tuple[tuple[int, ...], ...]
    pending: tuple[tuple[int, str], ...]


class Move(NamedTuple):
    """One step from a state to another; a tuple, because moves are hashed often."""

    kind: StepKind
    axes: tuple[int, ...]
    source: int | None
    """The place that the axis cuts before: of an all-gather or all-to-all."""
    target: int | None
    """The place that the axis cuts after: of a slice, reduce-scatter or all-to-all."""
    reduction: str
    cut: frozenset[int]
    """The axes that cut the larger side; the smaller side for a slice."""


class Code(NamedTuple):
    """A placement without its sizes."""

    cuts: Mapping[Atom, tuple[str, ...]]
    pending: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, placement: Placement) -> Code:
        """The cuts and pending reductions of a placement."""
        cuts = {(d, s): sub.axes for d, dim in enumerate(placement.dims) for s, sub in enumerate(dim) if sub.axes}
        return cls(cuts, placement.partial)


class Pattern(NamedTuple):
    """What differs between two placements. Places are numbered from `FRONT`, axes as they come: many pairs are one."""

    source: State
    target: State


class Aligned(NamedTuple):
    """A pattern, and what its numbers stand for."""

    pattern: Pattern
    atoms: tuple[Atom, ...]
    axes: tuple[str, ...]
    common: tuple[str, ...]
    """The axes that cut the same atom before and after."""


def align(source: Code, target: Code) -> Aligned:
    """What differs between two placements over the same atoms."""
    atoms: list[Atom] = [(0, 0)]
    before: list[tuple[str, ...]] = [()]
    after: list[tuple[str, ...]] = [()]
    common: list[str] = []
    for atom in {**source.cuts, **target.cuts}:
        here, there = source.cuts.get(atom, ()), target.cuts.get(atom, ())
        if here == there:
            common += here
        elif atom == (0, 0):
            before[FRONT], after[FRONT] = here, there
        else:
            atoms.append(atom)
            before.append(here)
            after.append(there)
    pending = [item for item in source.pending if item not in target.pending]
    wanted = [item for item in target.pending if item not in source.pending]
    axes: dict[str, int] = {}

    def numbered(cuts: list[tuple[str, ...]], partial: list[tuple[str, str]]) -> State:
        places = tuple(tuple(axes.setdefault(axis, len(axes)) for axis in place) for place in cuts)
        return State(places, tuple((axes.setdefault(axis, len(axes)), kind) for axis, kind in partial))

    pattern = Pattern(numbered(before, pending), numbered(after, wanted))
    return Aligned(pattern, tuple(atoms), tuple(axes), tuple(common))


@dataclass(frozen=True, slots=True)
class Ways:
    """All states between two, each after those that it leads to, and the moves from each."""

    moves: tuple[Move, ...]
    """The different moves."""
    graph: tuple[tuple[tuple[int, int], ...], ...]
    """For each state, the numbers of the moves from it and of the states they lead to; the source is the last."""
    goal: int | None
    """The number of the target; None where there is no way."""

    def cheapest(self, prices_s: Sequence[float]) -> tuple[float, list[int]]:
        """The seconds and moves of the cheapest way, the shortest of equals; infinite where there is none.

        `prices_s` are the seconds of the moves.
        """
        best: list[tuple[float, int]] = []  # for each state, the seconds and the number of the moves to go
        taken: list[tuple[int, int] | None] = []
        for number, onward in enumerate(self.graph):
            least, first = ((0.0, 0) if number == self.goal else (math.inf, 0)), None
            for step in onward:
                rest_s, length = best[step[1]]
                found = (prices_s[step[0]] + rest_s, length + 1)
                if _is_less(found, least):
                    least, first = found, step
            best.append(least)
            taken.append(first)
        way: list[int] = []
        next_ = taken[-1]
        while next_ is not None:
            way.append(next_[0])
            next_ = taken[next_[1]]
        return best[-1][0], way


def _is_less(found: tuple[float, int], least: tuple[float, int]) -> bool:
    """Whether a way is cheaper by more than rounding, or as cheap and shorter."""
    slack_s = 1e-12 * found[0]
    return found[0] + slack_s < least[0] or (found[0] <= least[0] + slack_s and found[1] < least[1])


def find_ways(pattern: Pattern) -> Ways:
    """The graph of the ways from the source of a pattern to its target."""
    numbers: dict[State, int] = {}
    graph: list[tuple[tuple[int, int], ...]] = []
    moves: dict[Move, int] = {}
    target = _Target(pattern.target)

    def explore(state: State) -> int:
        found = numbers.get(state)
        if found is None:
            onward = [(moves.setdefault(move, len(moves)), explore(after)) for move, after in target.moves(state)]
            found = numbers[state] = len(graph)
            graph.append(tuple(onward))
        return found

    explore(pattern.source)
    return Ways(tuple(moves), tuple(graph), numbers.get(pattern.target))


class _Target:
    """The moves towards one state."""

    def __init__(self, target: State) -> None:
        self.cuts = target.cuts
        self.places = {axis: place for place, axes in enumerate(target.cuts) for axis in axes}

    def moves(self, state: State) -> Iterator[tuple[Move, State]]:
        """The moves from a state, each with the state after it."""
        here = {axis: place for place, axes in enumerate(state.cuts) for axis in axes}
        cut = frozenset(here)
        yield from self._reductions(state, cut)
        for home, axes in enumerate(state.cuts):
            if not axes or axes == self.cuts[home][: len(axes)]:
                continue
            axis = axes[-1]
            gathered = _with(state, home, axes[:-1])
            yield Move("all_gather", (axis,), home, None, "sum", cut - {axis}), gathered
            goal = self.places.get(axis)
            if goal is not None and goal != home and self._is_next(state, goal, axis):
                after = _with(gathered, goal, (*state.cuts[goal], axis))
                yield Move("all_to_all", (axis,), home, goal, "sum", cut), after
        busy = {axis for axis, _ in state.pending}
        for axis, goal in self.places.items():
            if axis not in here and axis not in busy and self._is_next(state, goal, axis):
                after = _with(state, goal, (*state.cuts[goal], axis))
                yield Move("slice", (axis,), None, goal, "sum", cut | {axis}), after

    def _reductions(self, state: State, cut: frozenset[int]) -> Iterator[tuple[Move, State]]:
        """What is pending is reduced: one axis into the place that it is to cut, or all axes of a kind at once."""
        by_kind: dict[str, list[int]] = {}
        for axis, kind in state.pending:
            by_kind.setdefault(kind, []).append(axis)
            goal = self.places.get(axis)
            if goal is not None and kind == "sum" and self._is_next(state, goal, axis):
                after = _with(state, goal, (*state.cuts[goal], axis))
                pending = tuple(item for item in state.pending if item[0] != axis)
                yield Move("reduce_scatter", (axis,), None, goal, kind, cut), State(after.cuts, pending)
        for kind, axes in by_kind.items():
            left = tuple(item for item in state.pending if item[1] != kind)
            yield Move("all_reduce", tuple(axes), None, None, kind, cut), State(state.cuts, left)

    def _is_next(self, state: State, place: int, axis: int) -> bool:
        """Whether cutting this place by the axis next is what the target does."""
        axes = (*state.cuts[place], axis)
        return axes == self.cuts[place][: len(axes)]


def _with(state: State, place: int, axes: tuple[int, ...]) -> State:
    cuts = state.cuts
    return State((*cuts[:place], axes, *cuts[place + 1 :]), state.pending)
