"""From global shapes to those of one rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from axograph.capture import Program, capture, facts
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.passes.localize import Localize
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.shard import Shard
from axograph.placement import Placement
from axograph.runtime.virtual_grid import VirtualGrid


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).square().sum()


def local(model: nn.Module, grid: Grid, x: torch.Tensor) -> Program:
    program = Normalize().run(capture(model, (x,)))
    placed = Shard(grid=grid, cost_model=RingModel(), batch_dims={0: 0}).run(program)
    return Localize(grid=grid, cost_model=RingModel()).run(placed)


def test_inputs_have_the_shapes_of_one_rank_and_coordinates_follow() -> None:
    grid = Grid(2, 1, 2, 1)
    program = local(Mlp(), grid, torch.ones(4, 8))
    for node, declared in zip(program.placeholders(), program.inputs, strict=True):
        assert declared.placement is not None
        assert tuple(node.meta["val"].shape) == declared.placement.local_shape(grid)
    coordinates = [declared for declared in program.inputs if declared.kind == "coordinate"]
    assert [declared.target for declared in coordinates] == list(grid.cut_axes)
    assert all(declared.placement == Placement(()) for declared in coordinates)


def test_on_one_rank_nothing_is_communicated() -> None:
    program = local(Mlp(), Grid(1, 1, 1, 1), torch.ones(4, 8))
    assert all(facts(node).collective is None for node in program.graph.nodes)


def test_a_reshard_says_from_where_to_where() -> None:
    program = local(Mlp(), Grid(2, 1, 1, 1), torch.ones(4, 8))
    reasons = [facts(node).reason for node in program.graph.nodes if facts(node).reason]
    assert reasons
    assert all(" -> " in reason for reason in reasons)


@pytest.mark.parametrize("grid", [Grid(2, 1, 1, 1), Grid(1, 2, 2, 1), Grid(2, 2, 2, 2)], ids=str)
def test_all_ranks_together_compute_the_loss_and_the_gradients(grid: Grid) -> None:
    torch.manual_seed(0)
    model, x = Mlp().double(), torch.randn(4, 8, dtype=torch.float64)
    program = local(model, grid, x)
    model(x).backward()
    parameters = dict(model.named_parameters())
    virtual = VirtualGrid(grid)
    given = []
    for declared in program.inputs:
        assert declared.placement is not None
        if declared.kind == "coordinate":
            given.append(virtual.coordinate(str(declared.target)))
            continue
        whole = {"user": x, "tangent": torch.ones((), dtype=torch.float64)}.get(declared.kind)
        tensor = parameters[str(declared.target)].detach() if whole is None else whole
        given.append(virtual.place(tensor, declared.placement))
    results = virtual.run(program.graph_module, given)
    for result, declared in zip(results, program.outputs, strict=True):
        assert result is not None
        assert declared.placement is not None
        found = virtual.gather(result, declared.placement)
        expected = parameters[str(declared.target)].grad if declared.kind == "gradient" else model(x).detach()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
