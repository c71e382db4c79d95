"""Elimination, and the solver for what it leaves, against trying everything."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from axograph.passes.sharding import milp
from axograph.passes.sharding.dead_ends import alive_states
from axograph.passes.sharding.elimination import Problem, excesses, minimize


def random_problem(seed: int, variables: int, most_states: int, density: float, impossible: float) -> Problem:
    """Costs are whole numbers, so that ties are common and sums exact."""
    rng = np.random.default_rng(seed)
    problem = Problem()
    sizes = [int(rng.integers(1, most_states + 1)) for _ in range(variables)]

    def costs(shape: tuple[int, ...], chance: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        drawn = rng.integers(0, 20, shape).astype(float)
        drawn[rng.random(shape) < chance] = np.inf
        return drawn

    for name, size in enumerate(sizes):
        problem.add_variable(name, costs((size,), impossible / 3))
    for first, second in itertools.combinations(range(variables), 2):
        if rng.random() < density:
            problem.add_pair(first, second, costs((sizes[first], sizes[second]), impossible))
    return problem


def least_cost(problem: Problem) -> float:
    names = list(problem.unary)
    states = itertools.product(*(range(len(problem.unary[name])) for name in names))
    return min(problem.cost(dict(zip(names, chosen, strict=True))) for chosen in states)


@pytest.mark.parametrize("impossible", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("largest_table", [10**6, 30, 8])
def test_finds_the_least_cost(impossible: float, largest_table: int) -> None:
    for seed in range(15):
        problem = random_problem(seed, variables=6, most_states=4, density=0.7, impossible=impossible)
        least = least_cost(problem)
        found = minimize(problem, largest_table=largest_table)
        assert found.cost == least
        assert found.bound == least
        assert found.is_optimal
        if math.isfinite(least):
            assert problem.cost(found.states) == least


def test_a_problem_too_wide_for_tables_goes_to_the_solver() -> None:
    problem = random_problem(1, variables=9, most_states=5, density=1.0, impossible=0.0)
    whole = minimize(problem)
    divided = minimize(problem, largest_table=200)
    assert divided.width < whole.width
    assert divided.cost == whole.cost == whole.bound == divided.bound


def test_without_time_for_the_solver_the_bound_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp, "MOST_PAIRS", 0)
    proven = []
    for seed in range(30):
        problem = random_problem(seed, variables=7, most_states=4, density=1.0, impossible=0.1)
        least = least_cost(problem)
        found = minimize(problem, largest_table=10)
        if math.isfinite(found.cost):
            assert problem.cost(found.states) == found.cost
        assert found.bound <= least <= found.cost
        proven.append(found.is_optimal)
    assert 0 < sum(proven) < len(proven)


@pytest.mark.parametrize("largest_table", [10**6, 12])
def test_an_excess_is_what_choosing_a_state_costs_more(largest_table: int) -> None:
    for seed in range(12):
        problem = random_problem(seed, variables=5, most_states=4, density=0.8, impossible=0.1)
        names = list(problem.unary)
        bound, excess = excesses(problem, largest_table=largest_table)
        with_state = {name: np.full(len(cost), np.inf) for name, cost in problem.unary.items()}
        for chosen in itertools.product(*(range(len(problem.unary[name])) for name in names)):
            cost = problem.cost(dict(zip(names, chosen, strict=True)))
            for name, state in zip(names, chosen, strict=True):
                with_state[name][state] = min(with_state[name][state], cost)
        if math.isinf(least_cost(problem)):
            continue
        for name in names:
            if largest_table == 12:
                assert (bound + excess[name] <= with_state[name]).all()
            elif len(excess[name]) > 1:
                np.testing.assert_array_equal(bound + excess[name], with_state[name])


def test_a_long_chain_is_solved_at_once() -> None:
    rng = np.random.default_rng(0)
    problem = Problem()
    for name in range(2000):
        problem.add_variable(name, rng.random(8))
        if name:
            problem.add_pair(name - 1, name, rng.random((8, 8)))
    best = problem.unary[0]
    for name in range(1, 2000):
        best = (best[:, None] + problem.pair[name - 1, name]).min(axis=0) + problem.unary[name]
    found = minimize(problem)
    assert found.width == 2
    assert found.cost == pytest.approx(best.min(), rel=1e-12)


def test_dead_ends_leave_an_optimum() -> None:
    removed = 0
    for seed in range(60):
        problem = random_problem(seed, variables=5, most_states=5, density=0.6, impossible=0.1)
        alive = alive_states(problem)
        left = [alive[name].tolist() for name in problem.unary]
        removed += sum(len(cost) for cost in problem.unary.values()) - sum(map(len, left))
        costs = [problem.cost(dict(zip(problem.unary, states, strict=True))) for states in itertools.product(*left)]
        assert min(costs, default=math.inf) == least_cost(problem)
    assert removed > 100


def test_costs_of_a_variable_with_itself_and_of_turned_pairs_add_up() -> None:
    problem = Problem()
    problem.add_variable("a", np.array([1.0, 2.0]))
    problem.add_variable("b", np.array([0.0, 5.0]))
    problem.add_pair("a", "a", np.array([[10.0, 99.0], [99.0, 20.0]]))
    problem.add_pair("a", "b", np.array([[1.0, 2.0], [3.0, 4.0]]))
    problem.add_pair("b", "a", np.array([[100.0, 200.0], [300.0, 400.0]]))
    assert problem.cost({"a": 1, "b": 0}) == 2.0 + 20.0 + 3.0 + 200.0
    assert minimize(problem).states == {"a": 0, "b": 0}
