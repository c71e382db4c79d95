"""The assignment of least cost among those that hold no more than a limit: a price on what is held, then a MILP.

With a price on each byte, the problem is one for elimination again. Each price gives a lower bound, and mostly an
assignment that keeps the limit; the price with the best bound is found by following the lower hull of the points
(bytes, cost), as in the Dantzig-Wolfe method. Where bound and best assignment do not meet (identical layers share
their variables, and change together), states whose bound is beyond the best assignment are removed, and the rest goes
to a MILP.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from axograph.passes.sharding.dead_ends import Alive
from axograph.passes.sharding.elimination import LARGEST_TABLE, LONGEST_S, Problem, Solution, excesses, minimize
from axograph.passes.sharding.milp import PRECISION, Limit, solve

_MOST_PRICES = 40
"""Prices tried; each of them is a corner of the hull, of which there are few."""


def minimize_within(
    costs: Problem,
    held: Problem,
    most: float,
    *,
    largest_table: int = LARGEST_TABLE,
    longest_s: float = LONGEST_S,
) -> Solution:
    """The assignment of least cost that holds at most so much; its cost is infinite where none is found."""
    free = minimize(costs, largest_table=largest_table, longest_s=longest_s)
    if held.cost(free.states) <= most:
        return free
    least = least_held(costs, held, largest_table=largest_table, longest_s=longest_s)
    if least.bound > most or math.isinf(least.cost):
        return Solution(least.states, math.inf, math.inf, least.width)
    hull = _Hull(costs, held, most, free, least, largest_table, longest_s)
    hull.follow()
    best, bound = hull.best, hull.bound
    if best is not None and best.cost <= bound * (1 + PRECISION):
        return Solution(best.states, best.cost, bound, free.width)
    known = best.cost if best is not None else math.inf
    alive = hull.alive(known)
    limit = Limit(held=held.restricted(alive), most=most)
    found = solve(costs.restricted(alive), limit, cutoff=known, longest_s=longest_s)
    states = best.states if best is not None else least.states
    if found.states is not None:
        chosen = {name: int(alive[name][state]) for name, state in found.states.items()}
        if held.cost(chosen) <= most * (1 + PRECISION) and costs.cost(chosen) < known:
            states, known = chosen, costs.cost(chosen)
    return Solution(states, known, min(known, max(bound, found.bound)), free.width)


def least_held(
    costs: Problem, held: Problem, *, largest_table: int = LARGEST_TABLE, longest_s: float = LONGEST_S
) -> Solution:
    """The possible assignment that holds least; its cost is what it holds."""
    return minimize(priced_by(costs, held, math.inf), largest_table=largest_table, longest_s=longest_s)


def priced_by(costs: Problem, held: Problem, price: float) -> Problem:
    """The costs with a price on what is held; at an infinite price, what is held alone, where the costs are finite."""
    priced = Problem()
    for name, cost in costs.unary.items():
        priced.add_variable(name, np.where(np.isinf(cost), np.inf, 0.0) if math.isinf(price) else cost)
    for (a, b), cost in costs.pair.items():
        priced.add_pair(a, b, np.where(np.isinf(cost), np.inf, 0.0) if math.isinf(price) else cost)
    priced.add(held, 1.0 if math.isinf(price) else price)
    return priced


@dataclass(frozen=True, slots=True)
class _Point:
    states: dict[Hashable, int]
    cost: float
    held: float


class _Hull:
    """The lower hull of (held, cost), followed to where it crosses the limit."""

    def __init__(
        self,
        costs: Problem,
        held: Problem,
        most: float,
        free: Solution,
        least: Solution,
        largest_table: int,
        longest_s: float,
    ) -> None:
        self.costs, self.held, self.most = costs, held, most
        self.largest_table, self.longest_s = largest_table, longest_s
        self.best: _Point | None = None
        """The cheapest assignment found that keeps the limit."""
        self.bound = free.bound
        self.price = 0.0
        """The price of the best bound."""
        self.heavy, self.light = self._point(free), self._point(least)

    def _point(self, solution: Solution) -> _Point:
        states = solution.states
        point = _Point(states, self.costs.cost(states), self.held.cost(states))
        if point.held <= self.most and (self.best is None or point.cost < self.best.cost):
            self.best = point
        return point

    def follow(self) -> None:
        """Try the price at which the two nearest points cost the same, until nothing lies below the line."""
        for _ in range(_MOST_PRICES):
            if not self.light.held < self.heavy.held or not self.heavy.cost < self.light.cost:
                return
            price = (self.light.cost - self.heavy.cost) / (self.heavy.held - self.light.held)
            priced = priced_by(self.costs, self.held, price)
            solution = minimize(priced, largest_table=self.largest_table, longest_s=self.longest_s)
            bound = solution.bound - price * self.most
            if bound > self.bound or self.price == 0.0:
                self.price, self.bound = price, max(bound, self.bound)
            line = self.light.cost + price * self.light.held
            point = self._point(solution)
            if solution.cost >= line * (1 - PRECISION / 10):
                return
            if point.held <= self.most:
                self.light = point
            else:
                self.heavy = point

    def alive(self, known: float) -> Alive:
        """The states that may be in an assignment that costs less than the one known."""
        everything: Alive = {name: np.flatnonzero(np.isfinite(cost)) for name, cost in self.costs.unary.items()}
        if math.isinf(known):
            return everything
        priced = priced_by(self.costs, self.held, self.price)
        bound, excess = excesses(priced, largest_table=self.largest_table)
        room = known * (1 + PRECISION) - (bound - self.price * self.most)
        return {name: states[excess[name][states] <= room] for name, states in everything.items()}
