"""Three free axes: every two in turn, and numbers as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

import axograph
from axograph.capture import Program, capture
from axograph.cost_model import Collective, Compute
from axograph.cost_model.route import steps
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.shard import Shard
from axograph.pipeline import Pass
from axograph.plan import Plan


class Words:
    """Bytes that a ring moves, and next to nothing for work and memory."""

    def compute_s(self, work: Compute) -> float:
        return 1e-9 * work.flops

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        ranks = grid.extent(collective.axes)
        return steps(collective.kind, ranks) * collective.size_bytes / ranks

    def hold_s(self, size_bytes: float) -> float:
        return 1e-6 * size_bytes


class Mlp(nn.Module):
    def __init__(self, features: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x))).square().sum()


def program(rows: int) -> Program:
    return Normalize().run(capture(Mlp(), (torch.ones(rows, 32),)))


def planned(program: Program, grid: Grid, batch_axes: tuple[str, ...]) -> Plan:
    plan = Shard(grid=grid, cost_model=Words(), batch_dims={0: 0}, batch_axes=batch_axes).run(program).plan
    assert plan is not None
    return plan


def test_data_leaves_the_rows_where_weights_are_large() -> None:
    grid, layer = Grid(2, 2, 1, 2), program(rows=8)
    usual, free = planned(layer, grid, ("data", "z")), planned(layer, grid, ("z",))
    assert all("data" in placed.m for placed in usual.values())
    assert any("data" in (*placed.k, *placed.n) for placed in free.values())
    assert free.cost_s < usual.cost_s
    assert free.certificate == "optimal for every two of the axes data, x, y, the others kept"


def test_two_free_axes_are_searched_at_once() -> None:
    grid, layer = Grid(1, 2, 2, 2), program(rows=8)
    free = planned(layer, grid, ("z",))
    assert free.certificate == "optimal"
    assert free.cost_s <= planned(layer, grid, ("data", "z")).cost_s


def test_numbers_stay_the_same() -> None:
    def free(passes: Sequence[Pass]) -> Sequence[Pass]:
        return [replace(step, batch_axes=("z",)) if isinstance(step, Shard) else step for step in passes]

    torch.manual_seed(0)
    model, x = Mlp().double(), torch.randn(8, 32, dtype=torch.float64)
    expected = model(x)
    expected.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    module = axograph.parallelize(model, (2, 2, 1, 2), cost_model=Words(), pipeline=free)
    loss = module(x)
    loss.backward()
    stored = module.plan.parameters.values()
    assert any("data" in placement.axes for placement in stored)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-9)
