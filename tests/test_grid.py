"""The grid: numbering of ranks, groups along axes, and what is refused."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axograph.errors import GridError
from axograph.grid import AXES, Grid

sizes = st.integers(min_value=1, max_value=4)
grids = st.builds(Grid, sizes, sizes, sizes, sizes, st.permutations(AXES).map(tuple))


def test_x_is_innermost_and_data_outermost() -> None:
    grid = Grid(2, 3, 4, 5)
    for rank in range(grid.size):
        at = grid.coordinate(rank)
        assert rank == ((at["data"] * 4 + at["z"]) * 3 + at["y"]) * 2 + at["x"]
    assert grid.coordinate(1) == {"x": 1, "y": 0, "z": 0, "data": 0}
    assert grid.coordinate(119) == {"x": 1, "y": 2, "z": 3, "data": 4}
    assert [grid.stride(axis) for axis in AXES] == [1, 2, 6, 24]


def test_another_order_of_the_axes_numbers_the_ranks_anew() -> None:
    grid = Grid(2, 3, 1, 1, order=("y", "x", "z", "data"))
    assert [grid.coordinate(rank)["y"] for rank in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [grid.coordinate(rank)["x"] for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert (grid.stride("y"), grid.stride("x")) == (1, 3)


@pytest.mark.parametrize("value", [(2, 4, 8, 16), [2, 4, 8, 16], Grid(2, 4, 8, 16), iter((2, 4, 8, 16))])
def test_a_grid_is_made_of_anything_that_holds_four_sizes(value: Any) -> None:
    grid = Grid.of(value)
    assert grid == Grid(2, 4, 8, 16)
    assert (grid.shape, grid.size) == ((2, 4, 8, 16), 1024)
    assert str(grid) == "x=2 y=4 z=8 data=16"


def test_sizes_along_axes() -> None:
    grid = Grid(2, 1, 3, 4)
    assert grid["z"] == 3
    assert (grid.extent(()), grid.extent(("x", "z")), grid.extent(AXES)) == (1, 6, 24)
    assert grid.cut_axes == ("data", "x", "z")


def test_groups_along_one_axis_two_axes_and_none() -> None:
    grid = Grid(2, 2, 2, 1)
    assert list(grid.groups(["x"])) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert list(grid.groups(["y"])) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert list(grid.groups(["x", "z"])) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert list(grid.groups([])) == [(rank,) for rank in range(8)]
    assert grid.group(["z"], 6) == (2, 6)


@given(grids)
def test_rank_and_coordinate_are_inverse(grid: Grid) -> None:
    assert [grid.rank(grid.coordinate(rank)) for rank in range(grid.size)] == list(range(grid.size))


@given(grids, st.sets(st.sampled_from(AXES)))
def test_groups_hold_every_rank_once_and_have_the_size_of_their_axes(grid: Grid, axes: set[str]) -> None:
    groups = list(grid.groups(axes))
    assert sorted(itertools.chain(*groups)) == list(range(grid.size))
    assert {len(group) for group in groups} == {grid.extent(axes)}
    assert all(grid.group(axes, rank) == group for group in groups for rank in group)


@pytest.mark.parametrize(
    "value",
    [(2, 1, 2), (1, 1, 1, 1, 1), (0, 1, 1, 1), (-2, 1, 1, 1), (2.0, 1, 1, 1), (True, 1, 1, 1), "2121", 4, None],
    ids=repr,
)
def test_a_grid_that_is_not_four_positive_integers_is_refused(value: Any) -> None:
    with pytest.raises(GridError, match="a grid is four positive integers") as refusal:
        Grid.of(value)
    assert refusal.value.asked == f"grid={value!r}"
    assert "at least 1" in refusal.value.rule
    assert "(2, 1, 2, 1)" in refusal.value.remedy


@pytest.mark.parametrize("order", [("x", "y", "z"), ("x", "y", "z", "z"), ("x", "y", "z", "rows")], ids=repr)
def test_an_order_that_does_not_name_each_axis_once_is_refused(order: tuple[str, ...]) -> None:
    with pytest.raises(GridError, match="not a permutation") as refusal:
        Grid(1, 1, 1, 1, order=order)
    assert refusal.value.asked == f"order={order!r}"
    assert refusal.value.given == "the axes x, y, z, data"
