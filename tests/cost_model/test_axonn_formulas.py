"""AxoNN's collectives for a linear layer, by hand, and the paper's formulas for their seconds."""

from __future__ import annotations

import pytest

from axograph.cost_model import BandwidthModel, Collective, Machine
from axograph.cost_model.axonn_formulas import LinearLayer, backward_collectives, forward_collectives
from axograph.grid import Grid

LAYER = LinearLayer(m=4096, k=512, n=2048, element_bytes=2)
GRID = Grid(2, 4, 8, 16)


def test_forward_and_backward() -> None:
    weight_bytes = 2 * 512 * 2048 / 8  # x and y
    tokens = 4096 / 128  # z and data
    assert forward_collectives(LAYER, GRID) == (
        Collective(kind="all_gather", axes=("z",), size_bytes=weight_bytes),
        Collective(kind="all_reduce", axes=("y",), size_bytes=2 * tokens * 2048 / 2),
    )
    assert backward_collectives(LAYER, GRID) == (
        Collective(kind="all_gather", axes=("z",), size_bytes=weight_bytes),
        Collective(kind="all_reduce", axes=("x",), size_bytes=2 * tokens * 512 / 4),
        Collective(kind="reduce_scatter", axes=("z",), size_bytes=weight_bytes),
        Collective(kind="all_reduce", axes=("data",), size_bytes=weight_bytes / 8),
    )


def test_a_transposed_layer_swaps_x_and_y() -> None:
    transposed = LinearLayer(m=4096, k=2048, n=512, element_bytes=2, transposed=True)
    tokens = 4096 / 128
    assert forward_collectives(transposed, GRID)[1] == Collective(
        kind="all_reduce", axes=("x",), size_bytes=2 * tokens * 512 / 4
    )
    assert backward_collectives(transposed, GRID)[1] == Collective(
        kind="all_reduce", axes=("y",), size_bytes=2 * tokens * 2048 / 2
    )


@pytest.mark.parametrize(
    ("grid", "kinds"),
    [
        (Grid(1, 1, 1, 1), []),
        (Grid(1, 1, 4, 1), ["all_gather", "all_gather", "reduce_scatter"]),  # FSDP
        (Grid(1, 1, 1, 4), ["all_reduce"]),  # DDP
        (Grid(4, 1, 1, 1), ["all_reduce"]),  # Megatron's column-parallel layer
    ],
    ids=str,
)
def test_groups_of_one_rank_do_not_communicate(grid: Grid, kinds: list[str]) -> None:
    both = forward_collectives(LAYER, grid) + backward_collectives(LAYER, grid)
    assert [collective.kind for collective in both] == kinds


def test_seconds_are_the_papers_formulas() -> None:
    """Paper, with m of one data-parallel replica and every bandwidth as its Case 2 has it; Perlmutter, 4 per node."""
    (x, y, z, data), m, k, n = GRID.shape, 4096 // 16, 512, 2048
    bandwidth_z = bandwidth_data = 100e9 / 4
    bandwidth_y = 100e9 / 2  # x = 2 is inside, 2 x 4 ranks span two nodes
    bandwidth_x = 100e9  # Case 1: a pair in a node
    expected = 2 * (
        2 * (z - 1) * k * n / (x * y * z) / bandwidth_z
        + (z - 1) / z * k * n / (x * y) / bandwidth_z
        + 2 * (y - 1) / y * m * n / (z * x) / bandwidth_y
        + 2 * (x - 1) / x * m * k / (z * y) / bandwidth_x
        + 2 * (data - 1) / data * k * n / (x * y * z) / bandwidth_data
    )
    model = BandwidthModel(Machine.load("perlmutter"))
    both = forward_collectives(LAYER, GRID) + backward_collectives(LAYER, GRID)
    assert sum(model.collective_s(collective, GRID) for collective in both) == pytest.approx(expected, rel=1e-12)
