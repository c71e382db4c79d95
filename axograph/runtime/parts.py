"""The part of a global tensor that a rank holds, and the whole again from all parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from axograph.grid import CUT_ORDER, Grid
from axograph.placement import Placement


def local_part(tensor: torch.Tensor, placement: Placement, grid: Grid, coordinate: Mapping[str, int]) -> torch.Tensor:
    """A rank's part of a global tensor; a view where it can be."""
    shape, index = _divided(placement, grid)
    part = tensor.reshape(shape)
    for dim in reversed(range(len(shape))):
        axis = index[dim]
        if axis is not None:
            part = part.select(dim, coordinate[axis])
    return part.reshape(placement.local_shape(grid))


def stack_parts(tensor: torch.Tensor, placement: Placement, grid: Grid) -> torch.Tensor:
    """The parts of all ranks, `[*grid in CUT_ORDER, *local shape]`; copies share storage."""
    shape, index = _divided(placement, grid)
    split = tensor.reshape(shape)
    front = [index.index(axis) for axis in CUT_ORDER if axis in index]
    rest = [dim for dim, axis in enumerate(index) if axis is None]
    moved = split.permute([*front, *rest])
    local = placement.local_shape(grid)
    sizes = [grid[axis] if axis in index else 1 for axis in CUT_ORDER]
    stacked = moved.reshape([*sizes, *local])
    return stacked.expand([*(grid[axis] for axis in CUT_ORDER), *local])


def join_parts(stacked: torch.Tensor, placement: Placement, grid: Grid) -> torch.Tensor:
    """The global tensor from the parts of all ranks; of copies, the first is taken."""
    shape, index = _divided(placement, grid)
    for dim, axis in enumerate(CUT_ORDER):
        if axis not in index:
            stacked = stacked.narrow(dim, 0, 1)
    cut = [axis for axis in CUT_ORDER if axis in index]
    local = [size for size, axis in zip(shape, index, strict=True) if axis is None]
    split = stacked.reshape([*(grid[axis] for axis in cut), *local])
    places: list[int] = []
    inner = iter(range(len(cut), len(cut) + len(local)))
    for along in index:
        places.append(cut.index(along) if along is not None else next(inner))
    return split.permute(places).reshape(placement.shape)


def _divided(placement: Placement, grid: Grid) -> tuple[list[int], list[str | None]]:
    """The shape with every cut taken apart, and for each of its dims the axis that it runs along, or None."""
    shape: list[int] = []
    index: list[str | None] = []
    for dim in placement.dims:
        for sub in dim:
            for axis in sub.axes:
                shape.append(grid[axis])
                index.append(axis)
            shape.append(sub.local(grid))
            index.append(None)
    return shape, index
