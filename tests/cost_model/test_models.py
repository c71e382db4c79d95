"""RingModel and BandwidthModel against seconds worked out by hand, and the protocol that users implement."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from axograph.cost_model import BandwidthModel, Collective, CollectiveKind, Compute, CostModel, Machine, RingModel
from axograph.grid import Grid

PERLMUTTER = Machine.load("perlmutter")
GRID = Grid(4, 1, 8, 2)
"""x is inside a node at 300 GB/s and 3.4 us; z is between nodes, shared by four: 25 GB/s and 14 us."""


@pytest.mark.parametrize(
    ("kind", "axes", "latency_s", "moving_s"),
    [
        ("all_reduce", ("x",), 6 * 3.4e-6, 6 / 4 * 1e9 / 300e9),
        ("all_gather", ("x",), 3 * 3.4e-6, 3 / 4 * 1e9 / 300e9),
        ("all_reduce", ("z",), 14 * 14e-6, 14 / 8 * 1e9 / 25e9),
        ("all_gather", ("z",), 7 * 14e-6, 7 / 8 * 1e9 / 25e9),
        ("reduce_scatter", ("z",), 7 * 14e-6, 7 / 8 * 1e9 / 25e9),
        ("all_to_all", ("z",), 7 * 14e-6, 7 / 8 * 1e9 / 25e9),
        ("all_reduce", ("x", "z"), 62 * 14e-6, 62 / 32 * 1e9 / 100e9),
        ("all_reduce", ("y",), 0.0, 0.0),
        ("all_reduce", (), 0.0, 0.0),
    ],
)
def test_collectives(kind: CollectiveKind, axes: tuple[str, ...], latency_s: float, moving_s: float) -> None:
    collective = Collective(kind=kind, axes=axes, size_bytes=1e9)
    assert RingModel(PERLMUTTER).collective_s(collective, GRID) == pytest.approx(latency_s + moving_s, rel=1e-12)
    assert BandwidthModel(PERLMUTTER).collective_s(collective, GRID) == pytest.approx(moving_s, rel=1e-12)


def test_the_order_of_axes_decides_which_ring_crosses_nodes() -> None:
    collective = Collective(kind="all_reduce", axes=("x",), size_bytes=1e9)
    inside, across = Grid(4, 1, 8, 1), Grid(4, 1, 8, 1, order=("z", "y", "x", "data"))
    model = RingModel(PERLMUTTER)
    assert model.collective_s(collective, inside) == pytest.approx(6 * (3.4e-6 + 0.25e9 / 300e9))
    assert model.collective_s(collective, across) == pytest.approx(6 * (14e-6 + 0.25e9 / 25e9))


def test_compute_is_the_longer_side_of_the_roofline_and_a_launch() -> None:
    model = RingModel(PERLMUTTER)
    size = 8192
    matmul = Compute(op="aten.mm.default", flops=2 * size**3, size_bytes=3 * 2 * size**2, dtype="bf16")
    assert model.compute_s(matmul) == pytest.approx(2 * size**3 / 280.8e12 + 2e-6)
    add = Compute(op="aten.add.Tensor", flops=size**2, size_bytes=3 * 2 * size**2, dtype="bf16")
    assert model.compute_s(add) == pytest.approx(6 * size**2 / 1.555e12 + 2e-6)
    assert model.compute_s(replace(matmul, flops=0, size_bytes=0)) == 0
    assert BandwidthModel(PERLMUTTER).compute_s(matmul) == 0


def test_the_default_machine_is_perlmutter() -> None:
    assert RingModel() == RingModel(PERLMUTTER)


@dataclass(frozen=True)
class Flat:
    """A user's model: a microsecond for everything, memory free."""

    def compute_s(self, work: Compute) -> float:
        return 1e-6

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return 1e-6 * (grid.extent(collective.axes) > 1)

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


def test_models_conform_to_the_protocol() -> None:
    models: list[CostModel] = [RingModel(), BandwidthModel(PERLMUTTER), Flat()]
    assert all(isinstance(model, CostModel) for model in models)
    collective = Collective(kind="all_gather", axes=("z",), size_bytes=64)
    assert [model.collective_s(collective, Grid(2, 1, 1, 1)) for model in models] == [0, 0, 0]
    assert not isinstance(PERLMUTTER, CostModel)
