"""The part of a global tensor that a rank holds, and the whole again from all parts.

An axis that does not divide a dim leaves padding (zeros) at the end of the last parts, so that all are equally long.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from axograph.grid import CUT_ORDER, Grid
from axograph.placement import Placement


def local_part(tensor: torch.Tensor, placement: Placement, grid: Grid, coordinate: Mapping[str, int]) -> torch.Tensor:
    """A rank's part of a global tensor; a view where it can be."""
    part, index = _divided(tensor, placement, grid)
    for dim in reversed(range(len(index))):
        axis = index[dim]
        if axis is not None:
            part = part.select(dim, coordinate[axis])
    return part.reshape(placement.local_shape(grid))


def stack_parts(tensor: torch.Tensor, placement: Placement, grid: Grid) -> torch.Tensor:
    """The parts of all ranks, `[*grid in CUT_ORDER, *local shape]`; copies share storage."""
    split, index = _divided(tensor, placement, grid)
    front = [index.index(axis) for axis in CUT_ORDER if axis in index]
    rest = [dim for dim, axis in enumerate(index) if axis is None]
    moved = split.permute([*front, *rest])
    local = placement.local_shape(grid)
    sizes = [grid[axis] if axis in index else 1 for axis in CUT_ORDER]
    stacked = moved.reshape([*sizes, *local])
    return stacked.expand([*(grid[axis] for axis in CUT_ORDER), *local])


def join_parts(stacked: torch.Tensor, placement: Placement, grid: Grid) -> torch.Tensor:
    """The global tensor from the parts of all ranks; of copies, the first is taken."""
    subs = [sub for dim in placement.dims for sub in dim]
    cut = [axis for axis in CUT_ORDER if any(axis in sub.axes for sub in subs)]
    for dim, axis in enumerate(CUT_ORDER):
        if axis not in cut:
            stacked = stacked.narrow(dim, 0, 1)
    joined = stacked.reshape([*(grid[axis] for axis in cut), *(sub.local(grid) for sub in subs)])
    places: list[int] = []
    for position, sub in enumerate(subs):
        places += [cut.index(axis) for axis in sub.axes] + [len(cut) + position]
    joined = joined.permute(places)
    for dim, sub in enumerate(subs):  # each sub-dim is now its axes, outermost first, and what is left of it
        for level, (_, size, _) in reversed(list(enumerate(sub.levels(grid)))):
            joined = joined.flatten(dim + level, dim + level + 1).narrow(dim + level, 0, size)
    return joined.reshape(placement.shape)


def padded(part: torch.Tensor, placement: Placement, grid: Grid) -> torch.Tensor:
    """A shard as others hold it, without padding, as long as every rank's part."""
    missing = [want - have for want, have in zip(placement.local_shape(grid), part.shape, strict=True)]
    if not any(missing):
        return part
    return F.pad(part, [amount for size in reversed(missing) for amount in (0, size)])


def trimmed(part: torch.Tensor, placement: Placement, grid: Grid, coordinate: Mapping[str, int]) -> torch.Tensor:
    """A rank's part without padding: a view."""
    for dim, subs in enumerate(placement.dims):
        if len(subs) == 1 and not subs[0].is_even(grid):
            length = subs[0].size
            for axis, _, size in subs[0].levels(grid):
                length = min(size, max(length - coordinate[axis] * size, 0))
            part = part.narrow(dim, 0, length)
    return part


def _divided(tensor: torch.Tensor, placement: Placement, grid: Grid) -> tuple[torch.Tensor, list[str | None]]:
    """The tensor with every cut taken apart, and for each of its dims the axis that it runs along, or None."""
    split = tensor.reshape([sub.size for dim in placement.dims for sub in dim])
    index: list[str | None] = []
    for sub in (sub for dim in placement.dims for sub in dim):
        for axis, size, part in sub.levels(grid):
            dim, missing = len(index), grid[axis] * part - size
            if missing:
                split = F.pad(split, [0, 0] * (split.dim() - 1 - dim) + [0, missing])
            split = split.unflatten(dim, (grid[axis], part))  # type: ignore[no-untyped-call]
            index.append(axis)
        index.append(None)
    return split, index
