"""Exact minimisation of a sum of costs over few variables each: variable elimination, and a MILP for what it leaves.

Variables are eliminated one at a time, in the order that keeps the tables smallest; each elimination replaces the
costs that mention a variable by their minimum over it. Exact, and fast where the graph of costs is tree-like
(Dechter, "Bucket elimination", 1999). States that cannot be in an optimum are removed first (see `dead_ends`).

A table that would be too large is divided: the variable takes its best state in each part on its own, which gives a
lower bound (Dechter and Rish, "Mini-buckets", 2003). Then the states that lead beyond the best assignment known are
removed (`excesses`), and what is left goes to a MILP (`milp`), which runs until it has proven the optimum or its time
is up.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from axograph.passes.sharding.dead_ends import Alive, alive_states
from axograph.passes.sharding.milp import PRECISION, solve

Array = npt.NDArray[np.float64]
Table = tuple[tuple[Hashable, ...], Array]
"""The variables of a table, one for each dim, and the costs."""

LARGEST_TABLE = 20_000_000
"""The most entries of a table that elimination builds: 160 MB."""

LONGEST_S = 60.0
"""The seconds after which the MILP ends with the best that it has."""

_EXACT = 1e-9
"""Relative distance of a cost to its bound that is rounding."""


@dataclass(slots=True)
class Problem:
    """Variables with a cost for each state, and pairs of variables with a cost for each pair of states."""

    unary: dict[Hashable, Array] = field(default_factory=dict)
    pair: dict[tuple[Hashable, Hashable], Array] = field(default_factory=dict)

    def add_variable(self, name: Hashable, cost: Array) -> None:
        """Add a variable, or costs to one."""
        self.unary[name] = self.unary[name] + cost if name in self.unary else np.asarray(cost, dtype=float)

    def add_pair(self, first: Hashable, second: Hashable, cost: Array) -> None:
        """Add costs, indexed [state of first, state of second]."""
        if first == second:
            self.add_variable(first, np.diagonal(cost))
        elif (second, first) in self.pair:
            self.pair[second, first] = self.pair[second, first] + cost.T
        else:
            known = self.pair.get((first, second))
            self.pair[first, second] = cost if known is None else known + cost

    def add(self, other: Problem, factor: float = 1.0) -> None:
        """Add all costs of another problem, times a factor."""
        for name, cost in other.unary.items():
            self.add_variable(name, factor * cost)
        for (a, b), cost in other.pair.items():
            self.add_pair(a, b, factor * cost)

    def restricted(self, alive: Alive) -> Problem:
        """The problem with only these states; a state is then its place among them."""
        unary = {name: cost[alive[name]] for name, cost in self.unary.items()}
        pair = {(a, b): cost[np.ix_(alive[a], alive[b])] for (a, b), cost in self.pair.items()}
        return Problem(unary, pair)

    def cost(self, states: Mapping[Hashable, int]) -> float:
        """The total cost of an assignment."""
        total = sum(float(cost[states[name]]) for name, cost in self.unary.items())
        return total + sum(float(cost[states[a], states[b]]) for (a, b), cost in self.pair.items())


@dataclass(frozen=True, slots=True)
class Solution:
    """The best assignment found, and what is known of the least cost."""

    states: dict[Hashable, int]
    cost: float
    bound: float
    """No assignment costs less."""
    width: int
    """The most variables in one table, the eliminated one included."""

    @property
    def is_optimal(self) -> bool:
        """Whether nothing is cheaper, but for what the solvers round."""
        return self.cost <= self.bound * (1 + PRECISION) or self.cost == self.bound


def minimize(problem: Problem, *, largest_table: int = LARGEST_TABLE, longest_s: float = LONGEST_S) -> Solution:
    """The assignment of least total cost, or the best one found in the time allowed; its cost is infinite if none."""
    best = relaxed = _relax(problem, alive_states(problem), largest_table)
    bound = relaxed.bound
    while relaxed.divided and _is_above(best.cost, bound) and math.isfinite(best.cost):
        alive = _without_excess(relaxed, best.cost)
        if all(len(alive[name]) == len(states) for name, states in relaxed.alive.items()):
            break
        relaxed = _relax(problem, alive_states(problem, alive), largest_table)
        bound = max(bound, relaxed.bound)
        best = min(best, relaxed, key=lambda one: one.cost)
    bound = min(best.cost, bound)
    if not _is_above(best.cost, bound):
        return Solution(best.states, best.cost, bound, best.width)
    alive = relaxed.alive
    found = solve(problem.restricted(alive), cutoff=best.cost, longest_s=longest_s)
    states, cost = best.states, best.cost
    if found.states is not None:
        chosen = {name: int(alive[name][state]) for name, state in found.states.items()}
        if problem.cost(chosen) < cost:
            states, cost = chosen, problem.cost(chosen)
    return Solution(states, cost, min(cost, max(bound, found.bound)), best.width)


def excesses(problem: Problem, *, largest_table: int = LARGEST_TABLE) -> tuple[float, dict[Hashable, Array]]:
    """A lower bound, and for each state by how much at least it grows where the state is chosen (its reduced cost)."""
    alive = {name: np.arange(len(cost)) for name, cost in problem.unary.items()}
    relaxed = _relax(problem, alive, largest_table)
    none = {name: np.zeros(len(cost)) for name, cost in problem.unary.items()}
    return relaxed.bound, none | relaxed.buckets.excesses()


def _is_above(cost: float, bound: float) -> bool:
    return cost != bound and not cost <= bound * (1 + _EXACT)


def _without_excess(relaxed: _Relaxed, cost: float) -> Alive:
    """The states that may be in an assignment that costs less."""
    room = cost * (1 + _EXACT) - relaxed.bound
    excess = relaxed.buckets.excesses()
    return {name: states[excess[name] <= room] if name in excess else states for name, states in relaxed.alive.items()}


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """A problem with some states left out, eliminated with divided tables."""

    alive: Alive
    states: dict[Hashable, int]
    cost: float
    """What these states cost; an upper bound."""
    bound: float
    """A lower bound; equal to the cost where nothing was divided."""
    buckets: _Buckets

    @property
    def divided(self) -> bool:
        return self.buckets.divided

    @property
    def width(self) -> int:
        return self.buckets.width


def _relax(problem: Problem, alive: Alive, largest: int) -> _Relaxed:
    if any(len(states) == 0 for states in alive.values()):
        return _Relaxed(alive, dict.fromkeys(alive, 0), math.inf, math.inf, _Buckets({}, (), largest))
    settled, tables = _without_settled(problem, alive)
    buckets = _Buckets({name: len(states) for name, states in alive.items()}, tables, largest)
    bound = settled + buckets.eliminate()
    places = buckets.states()
    if buckets.divided:
        places = _polished(problem, alive, places)
    states = {name: int(alive[name][place]) for name, place in places.items()}
    return _Relaxed(alive, states, problem.cost(states), bound, buckets)


class _Bucket(NamedTuple):
    """The elimination of a variable from some tables."""

    name: Hashable
    tables: list[Table]
    least: Table
    """Their minimum over the variable."""


class _Buckets:
    """The elimination of one set of tables."""

    def __init__(self, sizes: Mapping[Hashable, int], tables: Iterable[Table], largest: int) -> None:
        self.sizes = sizes
        self.largest = largest
        self.divided = False
        """Whether a table had to be divided."""
        self.width = 0
        self.numbers = itertools.count()
        self.tables: dict[int, Table] = {}
        self.by_variable: dict[Hashable, dict[int, None]] = {name: {} for name, size in sizes.items() if size > 1}
        for table in tables:
            self._add(table)
        self.order = {name: place for place, name in enumerate(self.by_variable)}
        self.trail: list[tuple[Hashable, list[Table]]] = []
        self.buckets: list[_Bucket] = []
        self.made: set[int] = set()
        """The identities of the tables that eliminations made."""

    def _add(self, table: Table) -> None:
        number = next(self.numbers)
        self.tables[number] = table
        for name in table[0]:
            self.by_variable[name][number] = None

    def eliminate(self) -> float:
        """Eliminate all variables; what is left is the least cost, or a bound of it where a table was divided."""
        total = 0.0
        weights = {name: self._weight(name) for name in self.by_variable}
        heap = [(weight, self.order[name], name) for name, weight in weights.items()]
        heapq.heapify(heap)
        while heap:
            weight, _, name = heapq.heappop(heap)
            if weights.get(name) != weight:
                continue
            del weights[name]
            mentioned = [self.tables.pop(number) for number in self.by_variable.pop(name)]
            self.trail.append((name, mentioned))
            around = self._forget(name, mentioned)
            for group in self._divided(name, mentioned):
                scope, least = made = self._least(name, group)
                self.buckets.append(_Bucket(name, group, made))
                if scope:
                    self.made.add(id(least))
                    self._add(made)
                else:
                    total += float(least)
            for other in around:
                weights[other] = self._weight(other)
                heapq.heappush(heap, (weights[other], self.order[other], other))
        return total

    def _forget(self, name: Hashable, tables: Sequence[Table]) -> list[Hashable]:
        """Take tables off the lists of their variables; the other variables in them."""
        around = dict.fromkeys(v for scope, _ in tables for v in scope if v != name)
        for other in around:
            kept = self.by_variable[other]
            self.by_variable[other] = {number: None for number in kept if number in self.tables}
        return list(around)

    def _weight(self, name: Hashable) -> float:
        around = {v for number in self.by_variable[name] for v in self.tables[number][0]}
        return math.prod(float(self.sizes[v]) for v in around | {name})

    def _divided(self, name: Hashable, tables: Sequence[Table]) -> list[list[Table]]:
        """The tables in groups whose union is small enough; one group where that is possible."""
        groups: list[tuple[set[Hashable], list[Table]]] = []
        for table in sorted(tables, key=lambda table: -table[1].size):
            for scope, group in groups:
                if math.prod(self.sizes[v] for v in scope | set(table[0])) <= self.largest:
                    scope |= set(table[0])
                    group.append(table)
                    break
            else:
                groups.append((set(table[0]), [table]))
        self.divided |= len(groups) > 1
        self.width = max([self.width, *(len(scope) for scope, _ in groups)])
        return [group for _, group in groups]

    def _least(self, name: Hashable, tables: list[Table]) -> Table:
        """The minimum over one variable of the sum of tables, over their other variables."""
        others = {v for scope, _ in tables for v in scope if v != name}
        rest = tuple(sorted(others, key=self.order.__getitem__))
        aligned = sorted((_aligned(table, (name, *rest)) for table in tables), key=lambda cost: cost.size)
        least = np.full([self.sizes[v] for v in rest], np.inf)
        for state in range(self.sizes[name]):  # state by state: the joined table is never held
            joined = aligned[0][state]
            for cost in aligned[1:]:
                joined = joined + cost[state]
            np.minimum(least, joined, out=least)
        return rest, least

    def states(self) -> dict[Hashable, int]:
        """The state of each variable, last eliminated first, each the best one given those before."""
        chosen: dict[Hashable, int] = {name: 0 for name, size in self.sizes.items() if size == 1}
        for name, tables in reversed(self.trail):
            costs = np.zeros(self.sizes[name])
            for scope, cost in tables:
                costs = costs + cost[tuple(slice(None) if v == name else chosen[v] for v in scope)]
            chosen[name] = int(costs.argmin())
        return chosen

    def excesses(self) -> dict[Hashable, Array]:
        """For each state, by how much at least the least cost grows where the state is chosen.

        What the rest of the problem costs at least is passed back down, from each table to those it was made of.
        Where a variable was divided, each of its parts gives a bound, and the best of them counts.
        """
        excess: dict[Hashable, Array] = {}
        above: dict[int, Array] = {}  # for each table made, the least cost of all that it is not made of
        for bucket in reversed(self.buckets):
            rest = bucket.least[0]
            scope = (bucket.name, *rest)
            tables = [_aligned(table, scope) for table in bucket.tables]
            tables.append(above.get(id(bucket.least[1]), np.zeros(()))[None, ...])
            own = np.array([_total(tables, s).min() for s in range(self.sizes[bucket.name])])
            with np.errstate(invalid="ignore"):  # inf - inf: nothing is possible at all
                own = own - own.min()
            known = excess.get(bucket.name)
            excess[bucket.name] = own if known is None else np.maximum(known, own)
            for place, (mentioned, table) in enumerate(bucket.tables):
                if id(table) in self.made:
                    others = tables[:place] + tables[place + 1 :]
                    above[id(table)] = self._above(scope, others, mentioned)
        return excess

    def _above(self, scope: tuple[Hashable, ...], tables: list[Array], kept: tuple[Hashable, ...]) -> Array:
        """The minimum of the sum of tables over all variables of the scope but those kept."""
        shape = [self.sizes[v] for v in scope[1:]]
        gone = tuple(i for i, v in enumerate(scope[1:]) if v not in kept)
        left = tuple(v for v in scope[1:] if v in kept)
        found = []
        for state in range(self.sizes[scope[0]]):
            found.append(np.broadcast_to(_total(tables, state), shape).min(axis=gone))
        if scope[0] in kept:
            left, least = (scope[0], *left), np.stack(found)
        else:
            least = np.minimum.reduce(found)
        return _aligned((left, least), kept)


def _total(tables: list[Array], state: int) -> Array:
    """The sum of tables in one state of their first variable."""
    total = np.zeros(())
    for table in tables:
        total = total + table[state if len(table) > 1 else 0]
    return total


def _aligned(table: Table, scope: tuple[Hashable, ...]) -> Array:
    """The table with its dims in the order of the scope, and dims of length 1 for the rest."""
    mentioned, cost = table
    order = sorted(range(len(mentioned)), key=lambda i: scope.index(mentioned[i]))
    shape = [cost.shape[mentioned.index(v)] if v in mentioned else 1 for v in scope]
    return cost.transpose(order).reshape(shape)


def _without_settled(problem: Problem, alive: Alive) -> tuple[float, list[Table]]:
    """The costs between variables that still have a choice; what the settled ones cost is added to the others."""
    total = 0.0
    unary = {name: cost[alive[name]] for name, cost in problem.unary.items()}
    tables: list[Table] = []
    for (a, b), cost in problem.pair.items():
        table = cost[np.ix_(alive[a], alive[b])]
        if len(alive[a]) == 1:
            unary[b] = unary[b] + table[0]
        elif len(alive[b]) == 1:
            unary[a] = unary[a] + table[:, 0]
        else:
            tables.append(((a, b), table))
    for name, own in unary.items():
        if len(own) == 1:
            total += float(own[0])
        else:
            tables.append(((name,), own))
    return total, tables


def _polished(problem: Problem, alive: Alive, places: Mapping[Hashable, int]) -> dict[Hashable, int]:
    """Let one variable after the other take its best state given all others, until none moves."""
    _, tables = _without_settled(problem, alive)
    around: dict[Hashable, list[Table]] = {}
    for table in tables:
        for name in table[0]:
            around.setdefault(name, []).append(table)
    chosen = dict(places)
    moved = True
    while moved:
        moved = False
        for name, mentioned in around.items():
            costs = np.zeros(len(alive[name]))
            for scope, cost in mentioned:
                costs = costs + cost[tuple(slice(None) if v == name else chosen[v] for v in scope)]
            better = int(costs.argmin())
            if costs[better] < costs[chosen[name]] * (1 - _EXACT):
                chosen[name], moved = better, True
    return chosen
