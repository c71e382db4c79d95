"""The price of holding parameters: cut storage for weights, copies for what is mostly latency, on every machine."""

from __future__ import annotations

import pytest

from axograph.cost_model import BandwidthModel, Collective, CollectiveKind, CostModel, Machine, RingModel
from axograph.grid import Grid

MACHINES = [Machine.load(name) for name in Machine.known()]
RANKS = [2, 3, 4, 8, 32, 512]
INNER = [(1, 1), (2, 1), (2, 2), (4, 2)]
"""Sizes of x and y, inside z."""


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("inner", INNER, ids=str)
def test_large_weights_are_cheaper_cut_and_small_ones_as_copies(
    machine: Machine, ranks: int, inner: tuple[int, int]
) -> None:
    grid = Grid(*inner, ranks, 1)
    for model in (RingModel(machine), BandwidthModel(machine)):
        assert _cut_s(model, 1e6 * ranks, grid) < _copies_s(model, 1e6 * ranks, grid)
        assert _cut_s(model, 1e9 * ranks, grid) < _copies_s(model, 1e9 * ranks, grid)
    assert _copies_s(RingModel(machine), 4096, grid) < _cut_s(RingModel(machine), 4096, grid)


def test_the_choice_changes_where_the_latency_of_a_step_equals_the_time_of_its_bytes() -> None:
    grid = Grid(2, 2, 8, 1)  # rings over z at 25 GB/s, the slowest link, and 14 us
    even_bytes = 8 * 14e-6 * 25e9
    model = RingModel(Machine.load("perlmutter"))
    assert _cut_s(model, even_bytes, grid) == pytest.approx(_copies_s(model, even_bytes, grid))
    assert _cut_s(model, 1.01 * even_bytes, grid) < _copies_s(model, 1.01 * even_bytes, grid)
    assert _cut_s(model, 0.99 * even_bytes, grid) > _copies_s(model, 0.99 * even_bytes, grid)


def test_the_price_by_hand_and_by_the_user() -> None:
    perlmutter = Machine.load("perlmutter")
    assert RingModel(perlmutter).hold_s(25e9) == BandwidthModel(perlmutter).hold_s(25e9) == pytest.approx(2.0)
    assert RingModel(perlmutter, hold_s_per_byte=0).hold_s(25e9) == 0
    assert BandwidthModel(perlmutter, hold_s_per_byte=3e-9).hold_s(1e9) == pytest.approx(3.0)


def test_free_memory_makes_copies_cheaper_whatever_the_size() -> None:
    model = RingModel(hold_s_per_byte=0)
    assert _copies_s(model, 1e12, Grid(1, 1, 8, 1)) < _cut_s(model, 1e12, Grid(1, 1, 8, 1))


def _cut_s(model: CostModel, size_bytes: float, grid: Grid) -> float:
    gather_s = _over_z_s(model, "all_gather", size_bytes, grid)
    scatter_s = _over_z_s(model, "reduce_scatter", size_bytes, grid)
    return 2 * gather_s + scatter_s + model.hold_s(size_bytes / grid.z)


def _copies_s(model: CostModel, size_bytes: float, grid: Grid) -> float:
    return _over_z_s(model, "all_reduce", size_bytes, grid) + model.hold_s(size_bytes)


def _over_z_s(model: CostModel, kind: CollectiveKind, size_bytes: float, grid: Grid) -> float:
    return model.collective_s(Collective(kind=kind, axes=("z",), size_bytes=size_bytes), grid)
