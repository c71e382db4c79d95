"""Views by strides, without strides: tensors of a program have shapes, and no layout in memory.

`as_strided` reads the memory behind a tensor. What it reads is worked out from the captured layout: the same elements
in another order (reshape and permute), or a lookup of each element's position.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from axograph.capture.program import facts, value
from axograph.errors import UnsupportedError
from axograph.passes.rewrite import Emitter

aten = torch.ops.aten


def as_strided(
    emit: Emitter, node: fx.Node, x: fx.Node, size: list[int], stride: list[int], offset: int | None = None
) -> fx.Node:
    """The elements of `x` at `offset + sum(i * stride)`, `[*size]`."""
    flat = _in_memory_order(emit, node, x, _reach(size, stride, offset))
    order = _order(size, stride)
    if _is_dense(size, stride, order) and math.prod(size) == value(x).numel():
        apart = emit.call(aten.reshape.default, flat, [size[d] for d in order])
        return emit.call(aten.permute.default, apart, [order.index(d) for d in range(len(size))])
    picked = emit.call(aten.index_select.default, flat, 0, _positions(emit, x, size, stride, offset or 0))
    return emit.call(aten.reshape.default, picked, list(size))


def as_strided_scatter(
    emit: Emitter,
    node: fx.Node,
    x: fx.Node,
    part: fx.Node,
    size: list[int],
    stride: list[int],
    offset: int | None = None,
) -> fx.Node:
    """`x` with the elements that `as_strided` would read replaced by those of `part`."""
    flat = _in_memory_order(emit, node, x, _reach(size, stride, offset))
    order = _order(size, stride)
    if _is_dense(size, stride, order) and math.prod(size) == value(x).numel():
        flat = emit.call(aten.reshape.default, emit.call(aten.permute.default, part, order), [-1])
    else:
        positions = _positions(emit, x, size, stride, offset or 0)
        flat = emit.call(aten.scatter.src, flat, 0, positions, emit.call(aten.reshape.default, part, [-1]))
    tensor = _captured(node)
    memory = _order(list(tensor.shape), list(tensor.stride()))
    apart = emit.call(aten.reshape.default, flat, [tensor.shape[d] for d in memory])
    return emit.call(aten.permute.default, apart, [memory.index(d) for d in range(tensor.dim())])


def _captured(node: fx.Node) -> torch.Tensor:
    """The tensor as the model had it, with its strides."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return value(source)


def _reach(size: list[int], stride: list[int], offset: int | None) -> int:
    """The last element of the memory that is read."""
    return (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _order(size: list[int], stride: list[int]) -> list[int]:
    """The dims from the outermost in memory to the innermost."""
    return sorted(range(len(size)), key=lambda d: (-stride[d] if size[d] > 1 else 0, d))


def _is_dense(size: list[int], stride: list[int], order: list[int]) -> bool:
    """Whether each element of a stretch of memory is there once."""
    step = 1
    for d in reversed(order):
        if size[d] > 1 and stride[d] != step:
            return False
        step *= size[d]
    return True


def _in_memory_order(emit: Emitter, node: fx.Node, x: fx.Node, reach: int) -> fx.Node:
    """All elements of `x`, `[elements]`, as they lie in memory."""
    tensor = _captured(node)
    size, stride = list(tensor.shape), list(tensor.stride())
    order = _order(size, stride)
    if not _is_dense(size, stride, order) or tensor.storage_offset() or reach >= tensor.numel():
        raise _refusal(node, tensor)
    return emit.call(aten.reshape.default, emit.call(aten.permute.default, x, order), [-1])


def _positions(emit: Emitter, x: fx.Node, size: list[int], stride: list[int], offset: int) -> fx.Node:
    """The position in memory of each element, in order, `[elements]`."""
    made: Any = None
    for dim, (n, s) in enumerate(zip(size, stride, strict=True)):
        steps = emit.call(aten.arange.default, n, dtype=torch.int64, device=value(x).device)
        aligned = emit.call(aten.reshape.default, steps, [n, *(1 for _ in size[dim + 1 :])])
        scaled = emit.call(aten.mul.Scalar, aligned, s)
        made = scaled if made is None else emit.call(aten.add.Tensor, made, scaled)
    return emit.call(aten.reshape.default, emit.call(aten.add.Scalar, made, offset), [-1])


def _refusal(node: fx.Node, tensor: torch.Tensor) -> UnsupportedError:
    about = facts(node)
    return UnsupportedError(
        f"{node.target} reads memory beside its tensor",
        asked=f"{about.path or 'the model'}: sizes {node.args[-2]}, strides {node.args[-1]}",
        given=about.source or f"a tensor of {list(tensor.shape)} with strides {list(tensor.stride())}",
        rule="a view by strides reads only the elements of a tensor that fills its memory without gaps",
        remedy="take the view of the whole tensor, or call .contiguous() before as_strided",
    )
