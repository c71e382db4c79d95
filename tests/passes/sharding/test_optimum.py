"""The optimum of small models against the solver on the whole problem, with every state of every variable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from axograph.capture import capture
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.passes.group_heads import GroupHeads
from axograph.passes.normalize import Normalize
from axograph.passes.recognize_causal import RecognizeCausal
from axograph.passes.sharding.dead_ends import alive_states
from axograph.passes.sharding.elimination import minimize
from axograph.passes.sharding.milp import solve
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.search import Search
from axograph.passes.sharding.survey import Survey
from tests.zoo import BY_NAME


class Experts(nn.Module):
    """A mixture of dense experts: every token goes to each, weighted by a router."""

    def __init__(self, features: int = 8, hidden: int = 16, count: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(features, count, bias=False)
        self.ups = nn.ModuleList(nn.Linear(features, hidden, bias=False) for _ in range(count))
        self.downs = nn.ModuleList(nn.Linear(hidden, features, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        made = [down(torch.relu(up(x))) for up, down in zip(self.ups, self.downs, strict=True)]
        return sum((weights[..., i : i + 1] * y for i, y in enumerate(made)), torch.zeros(())).sum()


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).sum()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(4, 4, 3, 4, 2).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(4, 4, 8)).sum()


@pytest.mark.parametrize("build", [Mlp, Attention, Experts])
def test_the_solver_finds_nothing_cheaper_in_the_whole_problem(build: type[nn.Module]) -> None:
    program = Normalize().run(capture(build(), (torch.ones(4, 4, 8),)))
    problem = Search(Survey(program, Grid(2, 2, 2, 2), Scheme.named(None), {0: 0}), RingModel()).problem()
    found = minimize(problem)
    assert found.is_optimal
    assert np.isclose(problem.cost(found.states), found.cost, rtol=1e-12)
    whole = solve(problem, longest_s=60.0)
    assert whole.states is not None
    assert problem.cost(whole.states) == pytest.approx(found.cost, rel=1e-6)
    assert whole.bound == pytest.approx(found.cost, rel=1e-6)


@pytest.mark.parametrize(("name", "grid"), [("gpt", Grid(2, 2, 2, 2)), ("llama", Grid(2, 4, 1, 2))], ids=str)
def test_two_layers_are_as_cheap_as_the_solver_proves_possible(name: str, grid: Grid) -> None:
    program = capture(BY_NAME[name].model(), (), BY_NAME[name].inputs())
    for rewrite in (Normalize(), GroupHeads(), RecognizeCausal()):
        program = rewrite.run(program)
    problem = Search(Survey(program, grid, Scheme.named(None), {0: 0, 1: 0}), RingModel()).problem()
    found = minimize(problem)
    assert found.is_optimal
    proven = solve(problem.restricted(alive_states(problem)), longest_s=60.0)
    assert found.cost <= proven.bound * (1 + 1e-3)
    assert found.cost == pytest.approx(proven.bound, rel=1e-6)
