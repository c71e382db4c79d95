"""The search against trying every assignment of small models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from axograph.capture import Program, capture
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding import milp
from axograph.passes.sharding import search as search_module
from axograph.passes.sharding.elimination import Problem, Solution, minimize
from axograph.passes.sharding.repeats import unnumbered
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.search import Search
from axograph.passes.sharding.survey import Survey


class Mlp(nn.Module):
    def __init__(self, features: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.relu(self.up(x))).sum()


class Attention(nn.Module):
    def __init__(self, features: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, features = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, features // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, features)).sum()


class Stack(nn.Module):
    def __init__(self, *features: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n, bias=False) for k, n in itertools.pairwise(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def program(model: nn.Module, x: torch.Tensor, *, backward: bool = True) -> Program:
    with torch.set_grad_enabled(backward):
        return Normalize().run(capture(model, (x,)))


def search(program: Program, grid: Grid, scheme: str | None = None) -> Search:
    return Search(Survey(program, grid, Scheme.named(scheme), {0: 0}), RingModel())


def least_cost(problem: Problem, known: float) -> float:
    """The least cost of all assignments, by trying them in turn and leaving out those that are beyond `known` early."""
    names = list(problem.unary)
    place = {name: i for i, name in enumerate(names)}
    earlier: list[list[tuple[int, np.ndarray[tuple[int, int], np.dtype[np.float64]]]]] = [[] for _ in names]
    for (a, b), cost in problem.pair.items():
        first, second, table = (a, b, cost) if place[a] < place[b] else (b, a, cost.T)
        earlier[place[second]].append((place[first], table))
    rest = [0.0]  # what the variables from here on cost at least
    for at, name in reversed(list(enumerate(names))):
        costs = problem.unary[name] + sum(table.min(axis=0) for _, table in earlier[at])
        rest.append(rest[-1] + float(costs.min()))
    rest.reverse()
    best = math.inf
    states = [0] * len(names)

    def visit(at: int, cost: float) -> None:
        nonlocal best
        if at == len(names):
            best = min(best, cost)
            return
        costs = cost + problem.unary[names[at]]
        for other, table in earlier[at]:
            costs = costs + table[states[other]]
        for state in np.argsort(costs):
            if costs[state] + rest[at + 1] > min(best, known):
                return
            states[at] = int(state)
            visit(at + 1, float(costs[state]))

    visit(0, 0.0)
    return best


MODELS = {
    "linear": (Stack(8, 16), torch.ones(4, 8)),
    "mlp": (Mlp(), torch.ones(4, 8)),
    "attention": (Attention(), torch.ones(4, 4, 8)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("grid", [Grid(2, 1, 1, 1), Grid(1, 2, 1, 1)], ids=str)
def test_no_assignment_is_cheaper(name: str, grid: Grid) -> None:
    problem = search(program(*MODELS[name], backward=name != "attention"), grid).problem()
    found = minimize(problem)
    assert found.is_optimal
    assert problem.cost(found.states) == pytest.approx(found.cost, rel=1e-12)
    assert least_cost(problem, found.cost * (1 + 1e-9)) == pytest.approx(found.cost, rel=1e-9)


def test_the_plain_product_of_all_states_agrees() -> None:
    problem = search(program(*MODELS["linear"]), Grid(2, 1, 1, 1)).problem()
    names = list(problem.unary)
    every: list[dict[Hashable, int]] = [
        dict(zip(names, states, strict=True))
        for states in itertools.product(*(np.flatnonzero(np.isfinite(problem.unary[name])) for name in names))
    ]
    assert len(every) > 10_000
    assert min(problem.cost(states) for states in every) == pytest.approx(minimize(problem).cost, rel=1e-12)


def test_identical_layers_are_decided_together() -> None:
    few, many = (search(program(Stack(*[8] * (n + 1)), torch.ones(4, 8)), Grid(2, 2, 2, 2)) for n in (5, 11))
    few.problem()
    many.problem()
    assert len(few.members) == len(many.members)
    assert unnumbered("model.layers.3.mlp.0") == "model.layers.#.mlp.#"


def test_a_search_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def hurried(problem: Problem) -> Solution:
        return minimize(problem, largest_table=10)

    monkeypatch.setattr(search_module, "minimize", hurried)
    monkeypatch.setattr(milp, "MOST_PAIRS", 0)
    found = search(program(*MODELS["attention"]), Grid(2, 2, 1, 1)).run()
    assert found.certificate.startswith("within ")
    assert found.certificate.endswith("% of the lower bound")
