"""The cheapest assignment that fits into memory, and what to say where none does.

The sum of what is held is limited exactly (`capped`). What is alive in passing is known for an assignment only, so room
is kept free for it: as much as the last assignment tried needs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from axograph.cost_model.memory import MemoryEstimate, readable
from axograph.errors import AxographError, PlanError
from axograph.grid import Grid
from axograph.passes.dataflow import is_view
from axograph.passes.sharding.arguments import tensor_of
from axograph.passes.sharding.capped import minimize_within, priced_by
from axograph.passes.sharding.elimination import Problem, Solution, minimize
from axograph.passes.sharding.memory import Held
from axograph.passes.sharding.passing import passing_bytes
from axograph.passes.sharding.work import local_work

if TYPE_CHECKING:
    from axograph.passes.sharding.search import Assignment, Search

_MOST_TRIES = 4
"""How often the room for what is in passing is corrected."""

_DEAR = 30.0
"""The price of a byte, as a multiple of the seconds per byte of the assignment that holds least."""

_MOST_ROOMS = 4
"""How many sizes of room for what is in passing are tried to find what holds least."""

_MOST_GRIDS = 8
"""How many other grids are searched for one that fits."""

_LARGEST_GRID = 2**17
"""The most ranks of a grid that is looked at."""


def estimate(search: Search, held: Held, states: Mapping[Hashable, int], decided: Assignment) -> MemoryEstimate:
    """What a rank holds under one assignment."""
    return MemoryEstimate(**held.by_kind(states), passing=passing_bytes(held, decided, search.resharder))


def within_memory(search: Search, problem: Problem, held: Held, free: Assignment) -> Assignment:
    """The cheapest assignment that fits, given the cheapest one of all, which does not; of none, what holds least."""
    fitting = _Fitting(search, problem, held)
    room = _memory(free).passing
    for _ in range(_MOST_TRIES):
        decided = fitting.cheapest(room)
        if decided is None:
            break
        if _memory(decided).total <= search.memory_bytes:
            return decided
        room = _memory(decided).passing
    least = fitting.least()
    if _memory(least).total > search.memory_bytes:
        return least
    decided = fitting.cheapest(_memory(least).passing)
    if decided is not None and _memory(decided).total <= search.memory_bytes:
        return decided
    return replace(least, certificate="the plan that holds least: how far from the optimum is not known")


def again_s(search: Search, free: Solution, decided: Assignment) -> float:
    """About the seconds of the least recomputation with which an assignment fits, where it recomputes.

    Those of all that blocks recompute, times the share of its bytes that must go: told by the cheapest assignment.
    """
    if not decided.blocks:
        return 0.0
    held = search.held(blocks=True)
    most, least = (_memory(search.read(free, one)).total for one in (search.held(blocks=False), held))
    share = min(max(most - search.memory_bytes, 0.0) / max(most - least, 1.0), 1.0)
    redone = [node for node in search.survey.nodes if node in held.redone and not is_view(node)]
    grid, rules = search.survey.grid, search.survey.rules
    works = (local_work(node, rules[node], decided.strategies[node], grid) for node in redone)
    return share * sum(search.model.compute_s(work) for work in works)


def _memory(decided: Assignment) -> MemoryEstimate:
    assert decided.memory is not None
    return decided.memory


class _Fitting:
    """Assignments of one search by what they hold."""

    def __init__(self, search: Search, problem: Problem, held: Held) -> None:
        self.search, self.problem, self.held = search, problem, held
        self.sizes = held.problem()
        self.passing = held.passing_at_least()

    def cheapest(self, room: float) -> Assignment | None:
        """The cheapest assignment that leaves some room for what is in passing, which may be more than that."""
        most = self.search.memory_bytes - self.held.fixed_bytes - room
        solution = minimize_within(self._passing_within(room), self.sizes, most)
        if not math.isfinite(solution.cost):
            return None
        decided = self.search.read(solution, self.held)
        kept = f", in memory with {readable(room)} kept free for what is in passing"
        return replace(decided, certificate=decided.certificate + kept)

    def least(self) -> Assignment:
        """The assignment that holds least of those that are found with prices on what is held, and room for the rest.

        At the lower price a byte counts so much that few are left over, and the assignment is still a sensible one,
        which has little in passing.
        """
        room = max((float(alive.min()) for alive in self.passing.values()), default=0.0)
        found: list[Assignment] = []
        for _ in range(_MOST_ROOMS):
            possible = self._passing_within(room)
            price = math.inf
            for _ in range(2):
                solution = minimize(priced_by(possible, self.sizes, price))
                if math.isinf(solution.cost):
                    break
                seconds, size = possible.cost(solution.states), self.sizes.cost(solution.states)
                found.append(self.search.read(Solution(solution.states, seconds, 0.0, solution.width), self.held))
                price = _DEAR * seconds / max(size, 1.0)
            room *= 1.6
        return min(found, key=lambda one: _memory(one).total)

    def _passing_within(self, room: float) -> Problem:
        """The problem without the states that need more room."""
        unary = {
            name: np.where(self.passing[name] > room, np.inf, cost) if name in self.passing else cost
            for name, cost in self.problem.unary.items()
        }
        return Problem(unary, self.problem.pair)


def does_not_fit(search: Search, problem: Problem, held: Held, least: Assignment) -> PlanError:
    """What to say where even the assignment that holds least does not fit."""
    recomputing = f', remat="{search.remat}"' if search.remat != "none" else ""
    blocks = "with the insides of blocks recomputed, " if held.blocks else ""
    return PlanError(
        "no plan fits into the memory of a rank",
        asked=f"grid {search.survey.grid}, with {readable(search.memory_bytes)} of memory on each rank{recomputing}",
        given=f"{blocks}the plan that holds least, of those found, holds {_memory(least)}",
        rule="parameters, gradients, optimizer state, what is saved for backward, the batch, and what is alive in "
        "passing fit into the memory of a rank together",
        remedy=_remedy(search, problem, held),
    )


def _remedy(search: Search, problem: Problem, held: Held) -> str:
    if not held.blocks:
        recomputing = _memory(_Fitting(search, problem, search.held(blocks=True)).least()).total
        if recomputing <= search.memory_bytes:
            return f'remat="auto": with the insides of blocks recomputed, a plan holds {readable(recomputing)}'
    tried = 0
    for grid in _grids(search):
        if held.whole_bytes() / grid.size + held.fixed_bytes > search.memory_bytes:
            continue  # not even if everything were cut by every axis
        tried += 1
        found = _held_on(search, grid)
        if found is not None and found <= search.memory_bytes:
            sizes = ", ".join(str(grid[axis]) for axis in ("x", "y", "z", "data"))
            return (
                f"grid=({sizes}): with {grid.size} ranks the smallest grid found that fits, holding {readable(found)}; "
                "or a smaller batch"
            )
        if tried == _MOST_GRIDS:
            break
    return "a smaller batch, or a machine with more memory: no grid was found that fits"


def _held_on(search: Search, grid: Grid) -> float | None:
    """What the plan that holds least holds on another grid; None where the grid does not suit the model."""
    try:
        other = type(search)(replace(search.survey, grid=grid), search.model, full_outputs=search.full_outputs)
        other.states.check_pins()
        problem = other.problem()
        least = _Fitting(other, problem, other.held(blocks=search.remat != "none")).least()
    except AxographError:
        return None
    rules = search.survey.rules
    busy = {axis for node, s in least.strategies.items() if rules[node].flops for a in s.cuts.values() for axis in a}
    return _memory(least).total if busy >= set(grid.cut_axes) else None


def _grids(search: Search) -> Iterator[Grid]:
    """Grids that cut memory well, by growing numbers of ranks: the batch by z, features by x, or by x and y."""
    survey = search.survey
    batch = 0
    for node, declared in survey.placeholders.items():
        dim = survey.batch_dims.get(int(declared.target)) if declared.kind == "user" else None
        if dim is not None:
            batch = math.gcd(batch, tensor_of((node, 0)).shape[dim])
    ranks = 2
    while ranks <= _LARGEST_GRID:
        z = math.gcd(batch, ranks) if batch else 1
        rest = ranks // z
        y = 2 ** (int(math.log2(rest)) // 2)
        yield Grid(rest, 1, z, 1)
        if y > 1:
            yield Grid(rest // y, y, z, 1)
        ranks *= 2
