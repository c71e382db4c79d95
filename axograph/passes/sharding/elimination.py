"""Exact minimisation of a sum of costs over few variables each, by variable elimination.

Variables are eliminated one at a time, in the order that keeps the tables smallest; each elimination replaces the
costs that mention a variable by their minimum over it. Exact, and fast where the graph of costs is tree-like
(Dechter, "Bucket elimination", 1999). States that cannot be in an optimum are removed first by dead-end elimination
(Goldstein, Biophys. J. 66, 1994).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LARGEST_TABLE = 60_000_000
"""The most entries of a table that elimination will build: 480 MB."""


class TooWideError(RuntimeError):
    """No elimination order keeps the tables below `LARGEST_TABLE`."""


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
    """The assignment of least cost."""

    states: dict[Hashable, int]
    cost: float
    width: int
    """The most variables in one table."""


def minimize(problem: Problem) -> Solution:
    """The assignment of least total cost. Raises `TooWideError` where the tables would not fit."""
    kept = _alive(problem)
    total, tables = _without_settled(problem, kept)
    sizes = {name: len(states) for name, states in kept.items()}
    graph = nx.Graph()
    graph.add_nodes_from(name for name in problem.unary if sizes[name] > 1)
    graph.add_edges_from(scope for scope, _ in tables if len(scope) == 2)
    by_variable: dict[Hashable, set[int]] = {name: set() for name in graph.nodes}
    store: dict[int, tuple[tuple[Hashable, ...], Array]] = dict(enumerate(tables))
    for key, (scope, _) in store.items():
        for name in scope:
            by_variable[name].add(key)
    trail: list[tuple[Hashable, tuple[Hashable, ...], npt.NDArray[np.intp]]] = []
    width = 0
    order = _Order(graph, sizes)
    while order:
        name = order.pop()
        scope = (name, *order.neighbours(name))
        if math.prod(sizes[v] for v in scope) > LARGEST_TABLE:
            raise TooWideError(f"a table over {len(scope)} variables")
        width = max(width, len(scope))
        joined = np.zeros([sizes[v] for v in scope])
        for key in list(by_variable[name]):
            mentioned, cost = store.pop(key)
            joined += _aligned(mentioned, cost, scope)
            for v in mentioned:
                by_variable[v].discard(key)
        choice = joined.argmin(axis=0)
        rest = scope[1:]
        trail.append((name, rest, choice))
        least = joined.min(axis=0)
        if rest:
            key = len(trail) + len(tables)
            store[key] = (rest, least)
            for v in rest:
                by_variable[v].add(key)
        else:
            total += float(least)
        order.eliminate(name)
    states: dict[Hashable, int] = {name: 0 for name, size in sizes.items() if size == 1}
    for name, rest, choice in reversed(trail):
        states[name] = int(choice[tuple(states[v] for v in rest)])
    chosen = {name: int(kept[name][state]) for name, state in states.items()}
    return Solution(chosen, total, width)


def _without_settled(
    problem: Problem, kept: Mapping[Hashable, npt.NDArray[np.intp]]
) -> tuple[float, list[tuple[tuple[Hashable, ...], Array]]]:
    """The costs between variables that still have a choice; what the settled ones cost is added to the others."""
    total = 0.0
    unary = {name: cost[kept[name]] for name, cost in problem.unary.items()}
    tables: list[tuple[tuple[Hashable, ...], Array]] = []
    for (a, b), cost in problem.pair.items():
        table = cost[np.ix_(kept[a], kept[b])]
        if len(kept[a]) == 1:
            unary[b] = unary[b] + table[0]
        elif len(kept[b]) == 1:
            unary[a] = unary[a] + table[:, 0]
        else:
            tables.append(((a, b), table))
    for name, own in unary.items():
        if len(own) == 1:
            total += float(own[0])
        else:
            tables.append(((name,), own))
    return total, tables


def _aligned(mentioned: tuple[Hashable, ...], cost: Array, scope: tuple[Hashable, ...]) -> Array:
    """The table with its axes in the order of the scope, and axes of length 1 for the rest."""
    order = sorted(range(len(mentioned)), key=lambda i: scope.index(mentioned[i]))
    shape = [cost.shape[mentioned.index(v)] if v in mentioned else 1 for v in scope]
    return cost.transpose(order).reshape(shape)


class _Order:
    """The next variable to eliminate: the one whose table is smallest."""

    def __init__(self, graph: nx.Graph, sizes: Mapping[Hashable, int]) -> None:
        self.graph = graph
        self.sizes = sizes
        self.place = {name: i for i, name in enumerate(graph.nodes)}
        self.weight = {name: self._weigh(name) for name in graph.nodes}

    def __bool__(self) -> bool:
        return bool(self.weight)

    def _weigh(self, name: Hashable) -> float:
        return math.prod(self.sizes[v] for v in self.graph[name]) * self.sizes[name]

    def pop(self) -> Hashable:
        return min(self.weight, key=lambda name: (self.weight[name], self.place[name]))

    def neighbours(self, name: Hashable) -> list[Hashable]:
        return sorted(self.graph[name], key=self.place.__getitem__)

    def eliminate(self, name: Hashable) -> None:
        around = list(self.graph[name])
        self.graph.remove_node(name)
        del self.weight[name]
        self.graph.add_edges_from((a, b) for i, a in enumerate(around) for b in around[i + 1 :])
        for v in around:
            self.weight[v] = self._weigh(v)


def _alive(problem: Problem) -> dict[Hashable, npt.NDArray[np.intp]]:
    """The states of each variable that may be in an optimum."""
    alive = {name: np.flatnonzero(np.isfinite(cost)) for name, cost in problem.unary.items()}
    around: dict[Hashable, list[tuple[Hashable, Array]]] = {name: [] for name in problem.unary}
    for (a, b), cost in problem.pair.items():
        around[a].append((b, cost))
        around[b].append((a, cost.T))
    waiting = dict.fromkeys(problem.unary)
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        if _shrink(name, problem.unary[name], around[name], alive):
            waiting |= dict.fromkeys(other for other, _ in around[name])
    return alive


def _shrink(
    name: Hashable,
    unary: Array,
    around: list[tuple[Hashable, Array]],
    alive: dict[Hashable, npt.NDArray[np.intp]],
) -> bool:
    """Remove the states that another state beats whatever the neighbours do; whether any went."""
    states = alive[name]
    if len(states) <= 1:
        return False
    tables = [cost[np.ix_(states, alive[other])] for other, cost in around]
    possible = np.ones(len(states), dtype=bool)
    for table in tables:
        possible &= np.isfinite(table).any(axis=1)
    excess = unary[states][:, None] - unary[states][None, :]
    for table in tables:
        with np.errstate(invalid="ignore"):
            difference = table[:, None, :] - table[None, :, :]
        difference = np.where(np.isinf(table)[:, None, :], np.inf, difference)
        with np.errstate(invalid="ignore"):
            excess = excess + difference.min(axis=2)
    beaten = excess > 0
    equal = excess == 0
    earlier = np.tri(len(states), k=-1, dtype=bool)
    beaten |= equal & earlier
    beaten &= possible[None, :]
    np.fill_diagonal(beaten, False)
    keep = possible & ~beaten.any(axis=1)
    if keep.all() or not keep.any():
        return False
    alive[name] = states[keep]
    return True
