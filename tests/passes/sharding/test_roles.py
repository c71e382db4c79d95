"""Where the batch is, and which axes take it."""

from __future__ import annotations

import torch
from torch import nn

from axograph.capture import capture
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.survey import Survey


class Model(nn.Module):
    """Linear layers on [batch, positions, features]: the rows of the products are batch x positions."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).sum()


def survey(grid: Grid, scheme: str | None = None, rows: int = 4, batch_dim: int | None = 0) -> Survey:
    program = Normalize().run(capture(Model(), (torch.ones(rows, 6, 8),)))
    return Survey(program, grid, Scheme.named(scheme), {0: batch_dim})


def test_the_batch_is_followed_into_products_and_never_into_parameters() -> None:
    found = survey(Grid(1, 1, 2, 2))
    for node, declared in found.placeholders.items():
        expected = (0, 0) if declared.kind == "user" else None
        assert found.roles.batch_atom((node, 0)) == expected
    products = [node for node in found.nodes if node.target is torch.ops.aten.mm.default]
    forward = products[:2]
    assert all(found.roles.batch_atom((node, 0)) == (0, 0) for node in forward)
    assert all(found.roles.feature_factors(node, found.options[node]) == ("k", "n") for node in forward)


def test_z_and_data_take_the_batch_and_under_fsdp_every_axis() -> None:
    assert survey(Grid(2, 2, 2, 2)).roles.batch_axes == ("data", "z")
    assert survey(Grid(2, 2, 2, 2), "fsdp", rows=16).roles.batch_axes == ("data", "x", "y", "z")


def test_an_axis_that_does_not_divide_the_batch_cuts_other_rows_and_is_noted() -> None:
    found = survey(Grid(1, 1, 2, 2), rows=2)
    assert found.roles.batch_axes == ("data",)
    assert found.roles.row_axes == ("z",)
    assert found.roles.notes == (
        "z=2 does not divide the batch of 2 already cut by data; it cuts other rows, or the batch unevenly",
    )
    product = next(node for node in found.nodes if node in found.roles.weighted)
    rows = {unit.factor for unit in found.options[product].units if found.roles.is_row(product, unit)}
    assert rows == {"m"}


def test_an_axis_for_which_there_are_not_enough_rows_is_free() -> None:
    roles = survey(Grid(1, 1, 1, 64), rows=2).roles
    assert (roles.batch_axes, roles.row_axes) == ((), ())
    assert roles.notes == ("data=64 does not divide the batch of 2; it cuts other dims where that is cheapest",)


def test_without_a_batch_no_axis_takes_it() -> None:
    roles = survey(Grid(1, 1, 1, 2), batch_dim=None).roles
    assert roles.batch_axes == ()
    assert roles.notes == (
        "data=2 does not divide an input without a batch dim; it cuts other rows, or the batch unevenly",
    )
