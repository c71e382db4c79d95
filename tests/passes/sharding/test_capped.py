"""The limit on what is held, and the solver alone, against trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from axograph.passes.sharding.capped import minimize_within
from axograph.passes.sharding.elimination import Problem, minimize
from axograph.passes.sharding.milp import solve


def random_pair(seed: int) -> tuple[Problem, Problem]:
    """Costs, and what is held, over five variables of up to four states; whole numbers, some impossible."""
    rng = np.random.default_rng(seed)
    costs, held = Problem(), Problem()
    sizes = [int(rng.integers(1, 5)) for _ in range(5)]
    for name, size in enumerate(sizes):
        costs.add_variable(name, rng.integers(0, 20, size).astype(float))
        held.add_variable(name, rng.integers(0, 30, size).astype(float))
    for first, second in itertools.combinations(range(5), 2):
        if rng.random() < 0.6:
            shape = (sizes[first], sizes[second])
            drawn = rng.integers(0, 20, shape).astype(float)
            costs.add_pair(first, second, np.where(rng.random(shape) < 0.15, np.inf, drawn))
            if rng.random() < 0.5:
                held.add_pair(first, second, rng.integers(0, 10, shape).astype(float))
    return costs, held


def every(problem: Problem) -> list[dict[Hashable, int]]:
    names = list(problem.unary)
    states = itertools.product(*(range(len(problem.unary[name])) for name in names))
    return [dict(zip(names, chosen, strict=True)) for chosen in states]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.sampled_from([10**6, 20]))
def test_the_cheapest_that_keeps_a_limit_is_found(seed: int, share: float, largest_table: int) -> None:
    costs, held = random_pair(seed)
    points = [(costs.cost(states), held.cost(states)) for states in every(costs)]
    possible = [size for cost, size in points if math.isfinite(cost)]
    if not possible:
        return
    free = min(points)[1]
    most = math.floor(min(possible) + share * (free - min(possible)))
    best = min(cost for cost, size in points if size <= most)
    found = minimize_within(costs, held, most, largest_table=largest_table)
    assert found.cost == best
    assert found.is_optimal
    assert held.cost(found.states) <= most
    assert costs.cost(found.states) == best
    assert math.isinf(minimize_within(costs, held, min(possible) - 1, largest_table=largest_table).cost)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_elimination_the_solver_and_trying_everything_agree(seed: int) -> None:
    problem, _ = random_pair(seed)
    least = min(problem.cost(states) for states in every(problem))
    solved = solve(problem)
    assert minimize(problem).cost == minimize(problem, largest_table=10).cost == least
    assert (solved.states is None) == math.isinf(least)
    if solved.states is not None:
        assert problem.cost(solved.states) == least
        assert least * (1 - 1e-6) <= solved.bound <= least * (1 + 1e-6)
