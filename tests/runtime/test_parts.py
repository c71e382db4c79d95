"""Parts of a global tensor: what each rank holds, and the whole again."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from axograph.grid import AXES, CUT_ORDER, Grid
from axograph.placement import Placement, SubDim
from axograph.runtime.parts import join_parts, local_part, stack_parts

sizes = st.integers(min_value=1, max_value=3)
grids = st.builds(Grid, sizes, sizes, sizes, sizes)


@st.composite
def placed(draw: st.DrawFn) -> tuple[Grid, Placement]:
    """A grid, and a placement on it that cuts up to three dims, some inside."""
    grid = draw(grids)
    free = list(draw(st.permutations(AXES)))
    dims = []
    for _ in range(draw(st.integers(0, 3))):
        subs = []
        for _ in range(draw(st.integers(1, 2))):
            axes = tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free))))))
            subs.append(SubDim(grid.extent(axes) * draw(st.integers(1, 2)), axes))
        dims.append(tuple(subs))
    return grid, Placement(tuple(dims))


def numbered(placement: Placement) -> torch.Tensor:
    whole = torch.empty(placement.shape)
    return torch.arange(float(whole.numel())).reshape(placement.shape)


@given(placed())
def test_the_parts_of_all_ranks_make_the_whole(case: tuple[Grid, Placement]) -> None:
    grid, placement = case
    whole = numbered(placement)
    stacked = stack_parts(whole, placement, grid)
    assert stacked.shape == (*(grid[axis] for axis in CUT_ORDER), *placement.local_shape(grid))
    assert torch.equal(join_parts(stacked, placement, grid), whole)


@given(placed())
def test_the_stack_holds_each_rank_its_own_part(case: tuple[Grid, Placement]) -> None:
    grid, placement = case
    whole = numbered(placement)
    stacked = stack_parts(whole, placement, grid)
    for rank in range(grid.size):
        at = grid.coordinate(rank)
        part = local_part(whole, placement, grid, at)
        assert part.shape == placement.local_shape(grid)
        assert torch.equal(part, stacked[tuple(at[axis] for axis in CUT_ORDER)])


def test_a_dim_cut_by_two_axes_is_cut_by_the_first_outermost() -> None:
    grid, placement = Grid(2, 1, 2, 1), Placement.parse("[8/x.z]")
    parts = {
        (x, z): local_part(torch.arange(8), placement, grid, {"x": x, "z": z}).tolist()
        for x in range(2)
        for z in range(2)
    }
    assert parts == {(0, 0): [0, 1], (0, 1): [2, 3], (1, 0): [4, 5], (1, 1): [6, 7]}


def test_a_dim_cut_inside_gives_each_rank_a_piece_of_every_block() -> None:
    grid, placement = Grid(2, 1, 1, 1), Placement.parse("[(3 4/x)]")
    assert local_part(torch.arange(12), placement, grid, {"x": 0}).tolist() == [0, 1, 4, 5, 8, 9]
    assert local_part(torch.arange(12), placement, grid, {"x": 1}).tolist() == [2, 3, 6, 7, 10, 11]


def test_axes_that_do_not_cut_hold_copies_without_storage() -> None:
    grid, placement = Grid(2, 1, 3, 1), Placement.parse("[4/x]")
    stacked = stack_parts(torch.arange(4), placement, grid)
    assert stacked.shape == (1, 2, 1, 3, 2)
    assert stacked.stride(CUT_ORDER.index("z")) == 0
    assert stacked[0, 1, 0, 2].tolist() == [2, 3]
