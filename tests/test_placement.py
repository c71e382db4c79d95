"""The notation of placements: read, written, and the shapes that follow from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axograph.errors import PlacementError
from axograph.grid import AXES, Grid
from axograph.placement import DTYPES, Dim, Placement, SubDim


@st.composite
def placements(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> Placement:
    """Placements that use each axis at most once, on up to three dims of up to three sub-dims."""
    free = list(draw(st.permutations(AXES)))

    def sub() -> SubDim:
        axes = tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free))))))
        return SubDim(draw(sizes), axes)

    dims = tuple(tuple(sub() for _ in range(draw(st.integers(1, 3)))) for _ in range(draw(st.integers(0, 3))))
    pending = {axis: draw(st.sampled_from(["sum", "max"])) for axis in free if draw(st.booleans())}
    partial = tuple((axis, pending[axis]) for axis in AXES if axis in pending)
    return Placement(dims, partial, draw(st.none() | st.sampled_from(DTYPES)))


divisible = placements(st.sampled_from([1, 4, 8, 12]))
"""On a grid of (2, 2, 2, 2) all of these but a cut size of 1 divide."""


@given(placements(st.integers(0, 10**6)))
def test_what_is_printed_parses_to_the_same(placement: Placement) -> None:
    assert Placement.parse(str(placement)) == placement


def test_every_part_of_the_notation_is_read() -> None:
    assert Placement.parse("bf16[64/data.z, 512, (3 12/x 64)] partial(y:max)") == Placement(
        dims=((SubDim(64, ("data", "z")),), (SubDim(512),), (SubDim(3), SubDim(12, ("x",)), SubDim(64))),
        partial=(("y", "max"),),
        dtype="bf16",
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("[]", "[]"),
        ("i64[]", "i64[]"),
        ("  f32 [ 8 / x . z,4 ]partial( z,x : sum ) ", "f32[8/x.z, 4] partial(x, z)"),
        ("[(12)]", "[12]"),
        ("[4/y] partial(data:max, x)", "[4/y] partial(x, data:max)"),
    ],
)
def test_spaces_and_order_do_not_matter(text: str, canonical: str) -> None:
    assert str(Placement.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'bf16'"),
        ("64, 512", "'bf16'"),
        ("f8[64]", "'bf16'"),
        ("[64", "','"),
        ("[64 512]", "','"),
        ("[n]", "a size"),
        ("[-1]", "a token at '-1]'"),
        ("[()]", "a size"),
        ("[(3 4]", "a size"),
        ("[64/w]", "'x' or 'y' or 'z' or 'data'"),
        ("[64/x/y]", "','"),
        ("[64.x]", "','"),
        ("[64/]", "'x' or 'y' or 'z' or 'data'"),
        ("[64] partial()", "'x' or 'y' or 'z' or 'data'"),
        ("[64] partial(x:min)", "'sum' or 'max'"),
        ("[64] partial(x, x:max)", "an axis once"),
        ("[64] partial(x", "',' or ')'"),
        ("[64] pending(x)", "'partial'"),
        ("[64] partial(x) y", "the end"),
    ],
)
def test_text_that_is_not_a_placement_is_refused(text: str, expected: str) -> None:
    with pytest.raises(PlacementError, match="not a placement") as refusal:
        Placement.parse(text)
    assert refusal.value.asked == f"Placement.parse({text!r})"
    assert expected in refusal.value.given
    assert refusal.value.rule.startswith("dtype[size/axis.axis")
    assert Placement.parse(refusal.value.remedy).shape == (64, 512, 4096)


def test_shapes_follow_from_the_placement() -> None:
    placement = Placement.parse("bf16[64/data.z, 512, (3 12/x 64)] partial(y)")
    grid = Grid(2, 4, 8, 2)
    assert placement.shape == (64, 512, 2304)
    assert placement.local_shape(grid) == (4, 512, 1152)
    assert placement.local_elements(grid) == 4 * 512 * 1152
    assert placement.axes == {"x", "y", "z", "data"}
    assert str(placement.reduced()) == "bf16[64/data.z, 512, (3 12/x 64)]"


def test_a_whole_tensor_names_no_axis() -> None:
    placement = Placement.whole((2, 3), "f32")
    assert str(placement) == "f32[2, 3]"
    assert placement.local_shape(Grid(2, 4, 8, 16)) == (2, 3)
    assert placement.axes == frozenset()
    assert Placement.whole(()).local_elements(Grid(2, 1, 1, 1)) == 1


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("[(12/x 64)]", "[768/x]"),
        ("[(3 4)]", "[12]"),
        ("[(3 12/x 64)]", "[(3 768/x)]"),
        ("[(1 12/x)]", "[12/x]"),
        ("[(1 1)]", "[1]"),
        ("[(4/x 3/y 5)]", "[(4/x 15/y)]"),
    ],
)
def test_simplified_is_short(text: str, short: str) -> None:
    assert str(Placement.parse(text).simplified()) == short


def _indices(dim: Dim, grid: Grid, at: dict[str, int]) -> list[int]:
    """The positions of a dim that the rank at this coordinate holds."""
    positions = np.arange(Placement((dim,)).shape[0]).reshape([sub.size for sub in dim])
    for index, sub in enumerate(dim):
        for axis in sub.axes:
            positions = np.split(positions, grid[axis], axis=index)[at[axis]]
    return [int(position) for position in positions.flatten()]


def _divides(placement: Placement, grid: Grid) -> bool:
    return all(sub.size % grid.extent(sub.axes) == 0 for dim in placement.dims for sub in dim)


@given(divisible.filter(lambda placement: _divides(placement, Grid(2, 2, 2, 2))))
def test_simplified_holds_the_same_elements_on_every_rank(placement: Placement) -> None:
    grid = Grid(2, 2, 2, 2)
    short = placement.simplified()
    assert short.simplified() == short
    assert short.local_shape(grid) == placement.local_shape(grid)
    for rank in range(grid.size):
        at = grid.coordinate(rank)
        for dim, short_dim in zip(placement.dims, short.dims, strict=True):
            assert _indices(short_dim, grid, at) == _indices(dim, grid, at)


def test_parts_of_an_uneven_cut_are_equally_long() -> None:
    grid = Grid(2, 4, 1, 1)
    placement = Placement.parse("f32[12/x.y, (5/y 8)]")
    assert placement.local_shape(grid) == (2, 16)
    assert not placement.is_even(grid)
    assert placement.simplified(grid) == placement
    assert str(placement.simplified()) == "f32[12/x.y, 40/y]"
    assert placement.is_even(Grid(2, 1, 1, 1))
    assert placement.dims[0][0].levels(grid) == [("x", 12, 6), ("y", 6, 2)]


@pytest.mark.parametrize("text", ["[8/x, 8/x]", "[8/x.x]", "[8/x] partial(x)"])
def test_an_axis_that_is_used_twice_is_refused(text: str) -> None:
    with pytest.raises(PlacementError, match="axis x is used twice") as refusal:
        Placement.parse(text).check(Grid(2, 1, 1, 1))
    assert refusal.value.asked == text
    assert refusal.value.given == "grid x=2 y=1 z=1 data=1"
    assert refusal.value.remedy == "name x once"
