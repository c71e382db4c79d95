"""Exact minimisation of a sum of costs over few variables each, by variable elimination and, where needed, branching.

Variables are eliminated one at a time, in the order that keeps the tables smallest; each elimination replaces the
costs that mention a variable by their minimum over it. Exact, and fast where the graph of costs is tree-like
(Dechter, "Bucket elimination", 1999). States that cannot be in an optimum are removed first (see `dead_ends`).

A table that would be too large is divided: the variable takes its best state in each part on its own, which gives a
lower bound (Dechter and Rish, "Mini-buckets", 2003). Then the state of one variable is fixed, in turn to each of its
states, best bound first, until bound and best assignment meet or the work allowed is used up.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from axograph.passes.sharding.dead_ends import Alive, alive_states

Array = npt.NDArray[np.float64]
Table = tuple[tuple[Hashable, ...], Array]
"""The variables of a table, one for each dim, and the costs."""

LARGEST_TABLE = 20_000_000
"""The most entries of a table that elimination builds: 160 MB."""

MOST_WORK = 4_000_000_000
"""The entries added up before branching ends with the best that it has: some ten seconds."""

_CALL = 1_500
"""The entries that could be added up in the time that starting to add takes."""

_START = 2_000_000
"""The same for removing dead ends and dividing the tables anew."""

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
        """Whether nothing is cheaper, but for rounding."""
        return self.cost <= self.bound * (1 + _EXACT) or self.cost == self.bound


def minimize(problem: Problem, *, largest_table: int = LARGEST_TABLE, most_work: int = MOST_WORK) -> Solution:
    """The assignment of least total cost, or the best one that the allowed work finds; its cost is infinite if none."""
    counter = itertools.count()
    root = _relax(problem, alive_states(problem), largest_table)
    best, work, width = root, root.work, root.width
    waiting = [(root.bound, next(counter), root)]
    while waiting and waiting[0][0] < best.cost * (1 - _EXACT) and (work < most_work or math.isinf(best.cost)):
        _, _, node = heapq.heappop(waiting)
        if node.widest is None:
            continue
        for state in node.alive[node.widest]:
            alive = alive_states(problem, {**node.alive, node.widest: np.array([state])}, changed=node.widest)
            child = _relax(problem, alive, largest_table)
            work, width = work + child.work, max(width, child.width)
            if child.cost < best.cost:
                best = child
            if child.bound < best.cost * (1 - _EXACT):
                heapq.heappush(waiting, (max(child.bound, node.bound), next(counter), child))
    bound = min(best.cost, waiting[0][0]) if waiting else best.cost
    return Solution(best.states, best.cost, bound, width)


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """A problem with some states left out, eliminated with divided tables."""

    alive: Alive
    states: dict[Hashable, int]
    cost: float
    """What these states cost; an upper bound."""
    bound: float
    """A lower bound; equal to the cost where nothing was divided."""
    widest: Hashable | None
    """The variable whose state is worth fixing; None where nothing was divided."""
    work: int
    width: int


def _relax(problem: Problem, alive: Alive, largest: int) -> _Relaxed:
    if any(len(states) == 0 for states in alive.values()):
        return _Relaxed(alive, dict.fromkeys(alive, 0), math.inf, math.inf, None, 1, 0)
    settled, tables = _without_settled(problem, alive)
    buckets = _Buckets({name: len(states) for name, states in alive.items()}, tables, largest)
    bound = settled + buckets.eliminate()
    places = buckets.states()
    if buckets.divided:
        places = _polished(problem, alive, places)
    states = {name: int(alive[name][place]) for name, place in places.items()}
    widest = None
    if buckets.divided:
        widest = max(buckets.divided, key=lambda name: buckets.divided[name] / math.log(len(alive[name])))
    return _Relaxed(alive, states, problem.cost(states), bound, widest, buckets.work, buckets.width)


class _Buckets:
    """The elimination of one set of tables."""

    def __init__(self, sizes: Mapping[Hashable, int], tables: Iterable[Table], largest: int) -> None:
        self.sizes = sizes
        self.largest = largest
        self.divided: Counter[Hashable] = Counter()
        """How often each variable was in a table that had to be divided."""
        self.work = _START
        self.width = 0
        self.numbers = itertools.count()
        self.tables: dict[int, Table] = {}
        self.by_variable: dict[Hashable, dict[int, None]] = {name: {} for name, size in sizes.items() if size > 1}
        for table in tables:
            self._add(table)
        self.order = {name: place for place, name in enumerate(self.by_variable)}
        self.trail: list[tuple[Hashable, list[Table]]] = []

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
                scope, least = self._least(name, group)
                if scope:
                    self._add((scope, least))
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
        if len(groups) > 1:
            self.divided.update(set().union(*(scope for scope, _ in groups)))
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
        self.work += (least.size + _CALL) * self.sizes[name] * len(tables)
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
