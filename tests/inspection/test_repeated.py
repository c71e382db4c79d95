"""What is repeated along an axis, with its share of the time and the reason."""

import pytest
import torch
from torch import nn

import axograph
from axograph.cost_model import Collective, Compute
from axograph.grid import Grid
from axograph.inspection import repeated


@torch.library.custom_op("axograph_tests::backwards", mutates_args=())
def backwards(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody has a rule for: the rows in the opposite order."""
    return x.flip(0)


@backwards.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Turned(nn.Module):
    """A product, and its rows backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return backwards(self.layers[0](x))


class Counted:
    """A byte takes a second, and communication none."""

    def compute_s(self, work: Compute) -> float:
        return work.size_bytes

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return 0.0

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


def test_an_operator_that_no_axis_cuts_is_found_with_its_share() -> None:
    grid = Grid(1, 1, 2, 2)
    with torch.no_grad():
        module = axograph.parallelize(
            Turned(), grid, cost_model=Counted(), sample_inputs=(torch.ones(4, 8),), outputs="full"
        )
    (found,) = repeated(module.stages["shard"].program, grid, Counted())
    assert (found.what, found.where, found.count) == ("axograph_tests.backwards.default", "the model", 1)
    assert set(found.axes) == {"z", "data"}
    assert found.reason == "no rule"
    # turning takes 32 numbers in and 32 out on every rank; the product 8 in and 8 out, and the 64 of the weight
    turning, product = 4 * (32 + 32), 4 * (8 + 8 + 64)
    assert found.share == pytest.approx(0.75 * turning / (turning + product))
    assert str(found).startswith(" 33.3%  axograph_tests.backwards.default of the model (1), along ")


def test_shares_below_the_least_are_left_out() -> None:
    grid = Grid(1, 1, 2, 2)
    with torch.no_grad():
        module = axograph.parallelize(Turned(), grid, sample_inputs=(torch.ones(4, 8),))
    assert not repeated(module.stages["shard"].program, grid, Counted(), least=0.9)
