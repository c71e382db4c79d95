"""What the pass writes on a program and in its plan, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from axograph.capture import Program, capture, facts
from axograph.cost_model import RingModel
from axograph.errors import GridError, PlanError
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.shard import Shard
from axograph.plan import Plan


class Mlp(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).sum()


def sharded(grid: Grid, scheme: str | None = None, *, rows: int = 4, features: int = 8, hidden: int = 16) -> Program:
    program = Normalize().run(capture(Mlp(features, hidden), (torch.ones(rows, features),)))
    return Shard(grid=grid, cost_model=RingModel(), scheme=scheme, batch_dims={0: 0}).run(program)


def plan_of(grid: Grid, scheme: str | None = None, **sizes: int) -> Plan:
    plan = sharded(grid, scheme, **sizes).plan
    assert plan is not None
    return plan


def test_every_node_and_input_has_a_placement() -> None:
    program = sharded(Grid(2, 2, 2, 2))
    for node in program.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            assert len(facts(node).placements) == 1
    assert all(declared.placement is not None for declared in (*program.inputs, *program.outputs))


def test_a_gradient_lies_as_its_parameter() -> None:
    program = sharded(Grid(2, 1, 2, 2))
    stored = {declared.target: declared.placement for declared in program.inputs if declared.kind == "parameter"}
    gradients = {declared.target: declared.placement for declared in program.outputs if declared.kind == "gradient"}
    assert gradients == stored


def test_the_program_given_is_left_as_it_is() -> None:
    program = Normalize().run(capture(Mlp(8, 16), (torch.ones(4, 8),)))
    Shard(grid=Grid(2, 1, 1, 1), cost_model=RingModel(), batch_dims={0: 0}).run(program)
    assert program.plan is None
    assert all(not facts(node).placements for node in program.graph.nodes)


def test_the_plan_names_matmuls_and_weights() -> None:
    plan = plan_of(Grid(2, 1, 1, 1))
    assert list(plan) == ["up", "down"]
    assert plan["up"].weight == "up.weight"
    assert plan["up"].shape == (4, 8, 16)
    assert set(plan.parameters) == {"up.weight", "up.bias", "down.weight", "down.bias"}
    assert plan.certificate == "optimal"


def test_what_the_batch_does_not_divide_is_noted() -> None:
    plan = plan_of(Grid(1, 1, 3, 1), rows=4, features=9, hidden=6)
    assert plan.notes == ("z=3 does not divide the batch of 4; it cuts other rows, or the batch unevenly",)


def test_a_scheme_that_does_not_divide_says_so() -> None:
    plan = plan_of(Grid(9, 9, 1, 1), "axonn", rows=6, features=8, hidden=162)
    assert "no axonn layout divides m=6, k=8, n=162" in plan["up"].reason
    assert "no axonn layout" in str(plan)


def test_an_idle_axis_says_why() -> None:
    plan = plan_of(Grid(3, 1, 1, 1), rows=4, features=8, hidden=15)
    assert plan["up"].reason == "" or "x=3 is idle" in plan["up"].reason
    assert "x" in (*plan["up"].n, *plan["down"].k)


@pytest.mark.parametrize("scheme", [None, "axonn", "ddp"])
def test_an_axis_that_cuts_nothing_is_refused(scheme: str | None) -> None:
    with pytest.raises(GridError, match="axis x cuts nothing in this model") as caught:
        sharded(Grid(17, 1, 1, 1), scheme)
    text = str(caught.value)
    assert "up: m=4 k=8 n=16" in text
    assert "none is a multiple of 17" in text
    assert "x=1" in text


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(PlanError, match="no scheme is called 'zero3'"):
        sharded(Grid(2, 1, 1, 1), "zero3")
