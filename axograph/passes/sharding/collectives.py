"""Emitting reshards: each step of a path as operators on local tensors, collectives with an explicit wait.

Groups are named by their axes ("data.z"): the program is one text for all ranks, and the runtime binds the names to
process groups.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import fx

from axograph.capture.program import FACTS, Facts, facts
from axograph.cost_model.protocol import Collective
from axograph.grid import Grid
from axograph.passes.rewrite import Emitter
from axograph.passes.sharding.reshard import Atom, Path
from axograph.placement import Placement, SubDim
from axograph.torch_private import collective_op

aten = torch.ops.aten


class LocalEmitter(Emitter):
    """Emits operators on local tensors: collectives, slices by coordinate, reshards."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.coordinates: dict[str, fx.Node] = {}
        """The placeholder with this rank's position along each axis: a scalar i64."""

    def first(self, sub: SubDim) -> fx.Node:
        """The first position of this rank's part of a sub-dim; a scalar."""
        position: fx.Node | None = None
        for axis, _, part in sub.levels(self.grid):
            at = self.call(aten.mul.Scalar, self.coordinates[axis], part)
            position = at if position is None else self.call(aten.add.Tensor, position, at)
        assert position is not None
        return position

    def beyond(self, position: fx.Node, sub: SubDim) -> fx.Node | None:
        """Whether positions, counted from the first of this rank's part, lie in padding; None where there is none."""
        found: fx.Node | None = None
        for axis, size, part in reversed(sub.levels(self.grid)):
            before = self.call(aten.mul.Scalar, self.coordinates[axis], part)
            position = self.call(aten.add.Tensor, position, before)
            if self.grid[axis] * part > size:
                over = self.call(aten.ge.Scalar, position, size)
                found = over if found is None else self.call(aten.logical_or.default, found, over)
        return found

    def filled(self, x: fx.Node, placement: Placement, atom: Atom, value: float) -> fx.Node:
        """A local tensor with this value wherever an atom of it has padding."""
        tensor = x.meta["val"]
        dim = atom[0]
        outer, size, inner = _around(placement, atom, self.grid)
        positions = self.call(aten.arange.start_step, 0, size, 1, dtype=torch.int64, device=tensor.device)
        padding = self.beyond(positions, placement.dims[dim][atom[1]])
        assert padding is not None
        if outer * inner > 1:
            padding = self.call(aten.expand.default, self._shaped(padding, [1, size, 1]), [outer, size, inner])
        mask = self._shaped(padding, [outer * size * inner, *(1 for _ in tensor.shape[dim + 1 :])])
        fill = value if tensor.is_floating_point() or tensor.is_complex() else int(value)
        return self.call(aten.masked_fill.Scalar, x, mask, fill)

    def all_reduce(self, x: fx.Node, axes: tuple[str, ...], kind: str) -> fx.Node:
        """The sum or maximum over the ranks along these axes."""
        axes = tuple(axis for axis in axes if self.grid[axis] > 1)
        if not axes:
            return x
        sent, dtype = self._sendable(x)
        start = self.call(collective_op("all_reduce"), sent, kind, ".".join(axes))
        self._describe(start, "all_reduce", axes, sent)
        return self._received(self.call(collective_op("wait_tensor"), start), dtype)

    def reshard(self, x: fx.Node, source: Placement, path: Path, reason: str) -> fx.Node:
        """The tensor at the end of the path, through all its steps."""
        assert path.steps is not None
        before = source
        for step in path.steps:
            if step.kind == "all_reduce":
                x = self.all_reduce(x, step.axes, step.reduction)
            elif step.kind == "slice":
                assert step.target is not None
                x = self._slice(x, before, step.target, step.axes[0])
            elif step.kind == "all_gather":
                assert step.source is not None
                x = self._all_gather(x, before, step.source, step.axes[0])
            elif step.kind == "reduce_scatter":
                assert step.target is not None
                x = self._reduce_scatter(x, before, step.target, step.axes[0], step.reduction)
            else:
                assert step.source is not None
                assert step.target is not None
                x = self._all_to_all(x, before, step.source, step.target, step.axes[0])
            before = step.after
        if reason:
            x.meta[FACTS] = replace(facts(x), reason=reason)
        return x

    def _describe(self, start: fx.Node, kind: str, axes: tuple[str, ...], larger: fx.Node) -> None:
        tensor = larger.meta["val"]
        moved = Collective(kind=kind, axes=axes, size_bytes=tensor.numel() * tensor.element_size())  # type: ignore[arg-type]
        about: Facts = facts(start)
        start.meta[FACTS] = replace(about, collective=moved)

    def _slice(self, x: fx.Node, before: Placement, atom: Atom, axis: str) -> fx.Node:
        """This rank's part of an atom, chosen by its coordinate."""
        dim, count = atom[0], self.grid[axis]
        parts, part = self._in_parts(x, before, atom, count)
        index = self.call(aten.reshape.default, self.coordinates[axis], [1])
        return self._shaped(self.call(aten.index_select.default, parts, dim + 1, index), part)

    def _in_parts(self, x: fx.Node, before: Placement, atom: Atom, count: int) -> tuple[fx.Node, list[int]]:
        """The tensor with the parts of an atom as dims of their own, `[..., outer, count, rest, ...]`; a part's shape.

        Where the atom does not divide, its end is padded with zeros.
        """
        shape = list(x.meta["val"].shape)
        outer, size, inner = _around(before, atom, self.grid)
        dim, length = atom[0], -(-size // count)
        if count * length > size:
            x = self._shaped(x, [*shape[:dim], outer, size, inner, *shape[dim + 1 :]])
            behind = [0, 0] * (len(shape) - dim)
            x = self.call(aten.constant_pad_nd.default, x, [*behind, 0, count * length - size])
        x = self._shaped(x, [*shape[:dim], outer, count, length * inner, *shape[dim + 1 :]])
        return x, [*shape[:dim], outer * length * inner, *shape[dim + 1 :]]

    def _all_gather(self, x: fx.Node, before: Placement, atom: Atom, axis: str) -> fx.Node:
        """Every rank's part of an atom, one after the other."""
        count = self.grid[axis]
        shape = list(x.meta["val"].shape)
        outer, size, inner = _around(before, atom, self.grid)
        flat = self._contiguous(self._shaped(x, shape or [1]))
        sent, dtype = self._sendable(flat)
        start = self.call(collective_op("all_gather_into_tensor"), sent, count, axis)
        self._describe(start, "all_gather", (axis,), start)
        gathered = self._received(self.call(collective_op("wait_tensor"), start), dtype)
        kept = before.dims[atom[0]][atom[1]].levels(self.grid)[-1][1]
        return self._placed_in_front(gathered, shape, atom[0], (outer, size, inner), count, kept)

    def _placed_in_front(
        self, stacked: fx.Node, shape: list[int], dim: int, around: tuple[int, int, int], count: int, kept: int
    ) -> fx.Node:
        """Parts of an atom, stacked along dim 0, one after the other inside a dim; `kept` positions, less the padding.

        `shape` is that of a part, `around` the sizes outside the atom, of it, and inside it in the dim.
        """
        outer, size, inner = around
        x = stacked
        if dim > 0 or outer > 1:
            split = [count, *shape[:dim], outer, size * inner, *shape[dim + 1 :]]
            order = [*range(1, dim + 2), 0, *range(dim + 2, len(split))]
            x = self.call(aten.permute.default, self._shaped(x, split), order)
        if kept < count * size:
            x = self._shaped(x, [*shape[:dim], outer, count * size, inner, *shape[dim + 1 :]])
            x = self.call(aten.slice.Tensor, x, dim + 1, 0, kept)
        return self._shaped(x, [*shape[:dim], outer * kept * inner, *shape[dim + 1 :]])

    def _stacked(self, x: fx.Node, before: Placement, atom: Atom, count: int) -> tuple[fx.Node, list[int]]:
        """The parts of an atom stacked along a new dim 0, and the shape of one part."""
        dim, outer = atom[0], _around(before, atom, self.grid)[0]
        parts, part = self._in_parts(x, before, atom, count)
        if dim > 0 or outer > 1:
            order = [dim + 1, *range(dim + 1), *range(dim + 2, parts.meta["val"].dim())]
            parts = self.call(aten.permute.default, parts, order)
        return self._contiguous(self._shaped(parts, [count, *part])), part

    def _reduce_scatter(self, x: fx.Node, before: Placement, atom: Atom, axis: str, kind: str) -> fx.Node:
        """The sum over the ranks, each rank keeping its part of an atom."""
        count = self.grid[axis]
        stacked, part = self._stacked(x, before, atom, count)
        flat = self._shaped(stacked, [count * part[0], *part[1:]])
        sent, dtype = self._sendable(flat)
        start = self.call(collective_op("reduce_scatter_tensor"), sent, kind, count, axis)
        self._describe(start, "reduce_scatter", (axis,), sent)
        return self._shaped(self._received(self.call(collective_op("wait_tensor"), start), dtype), part)

    def _all_to_all(self, x: fx.Node, before: Placement, source: Atom, target: Atom, axis: str) -> fx.Node:
        """Cut another atom than before: gather one while giving away parts of the other."""
        count = self.grid[axis]
        stacked, part = self._stacked(x, before, target, count)
        sent, dtype = self._sendable(stacked)
        splits = [1] * count
        start = self.call(collective_op("all_to_all_single"), sent, splits, splits, axis)
        self._describe(start, "all_to_all", (axis,), sent)
        received = self._received(self.call(collective_op("wait_tensor"), start), dtype)
        local = [sub.local(self.grid) for sub in before.dims[source[0]]]
        if source[0] == target[0]:
            local[target[1]] = -(-local[target[1]] // count)
        at = source[1]
        around = math.prod(local[:at]), local[at], math.prod(local[at + 1 :])
        kept = before.dims[source[0]][at].levels(self.grid)[-1][1]
        return self._placed_in_front(received, part, source[0], around, count, kept)

    def _sendable(self, x: fx.Node) -> tuple[fx.Node, torch.dtype]:
        """Booleans travel as bytes, complex numbers as pairs of real ones."""
        dtype: torch.dtype = x.meta["val"].dtype
        if dtype.is_complex:
            return self.call(aten.view_as_real.default, x), dtype
        if dtype == torch.bool:
            return self.call(aten._to_copy.default, x, dtype=torch.uint8), dtype
        return x, dtype

    def _received(self, x: fx.Node, dtype: torch.dtype) -> fx.Node:
        if dtype.is_complex:
            return self.call(aten.view_as_complex.default, x)
        return x if x.meta["val"].dtype == dtype else self.call(aten._to_copy.default, x, dtype=dtype)

    def _shaped(self, x: fx.Node, shape: list[int]) -> fx.Node:
        return x if list(x.meta["val"].shape) == shape else self.call(aten.reshape.default, x, shape)

    def _contiguous(self, x: fx.Node) -> fx.Node:
        return self.call(aten.contiguous.default, x)


def _around(placement: Placement, atom: Atom, grid: Grid) -> tuple[int, int, int]:
    """Local sizes outside an atom, of it, and inside it, within its dim."""
    dim, at = placement.dims[atom[0]], atom[1]
    local = [sub.local(grid) for sub in dim]
    return math.prod(local[:at]), local[at], math.prod(local[at + 1 :])
