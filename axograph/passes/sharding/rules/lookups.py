"""Rules of lookups by an index: over a cut dim they become a masked local lookup and a partial sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term
from axograph.placement import Placement

aten = torch.ops.aten


def _dims(prefix: str, tensor: torch.Tensor) -> Term:
    return tuple((f"{prefix}{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))


def _sizes(prefix: str, tensor: torch.Tensor) -> dict[str, int]:
    return {f"{prefix}{dim}": size for dim, size in enumerate(tensor.shape)}


def _passes(tensor: torch.Tensor, *inputs: int) -> tuple[frozenset[int], ...]:
    """These inputs may be partial sums together, where they are numbers that sum up."""
    return (frozenset(inputs),) if tensor.is_floating_point() else ()


def _local_index(emit: Any, indices: fx.Node, placement: Placement | None, dim: int) -> tuple[fx.Node, fx.Node]:
    """The positions in this rank's part of a dim, and which of them lie outside of it (there the position is 0)."""
    assert placement is not None
    cut, *rest = placement.dims[dim]
    inner, size = math.prod(sub.size for sub in rest), placement.local_shape(emit.grid)[dim]
    first = emit.first(cut)
    if inner > 1:
        first = emit.call(aten.mul.Scalar, first, inner)
    local = emit.call(aten.sub.Tensor, indices, first)
    outside = emit.call(
        aten.logical_or.default, emit.call(aten.lt.Scalar, local, 0), emit.call(aten.ge.Scalar, local, size)
    )
    if not cut.is_even(emit.grid):
        outer = local if inner == 1 else emit.call(aten.div.Scalar_mode, local, inner, rounding_mode="floor")
        outside = emit.call(aten.logical_or.default, outside, emit.beyond(outer, cut))
    return emit.call(aten.masked_fill.Scalar, local, outside, 0), outside


def _without(emit: Any, x: fx.Node, outside: fx.Node, shape: list[int]) -> fx.Node:
    """Zero where a position lies outside; `shape` lines the positions up with the dims of x."""
    mask = emit.call(aten.reshape.default, outside, shape)
    return emit.call(aten.masked_fill.Scalar, x, mask, 0)  # type: ignore[no-any-return]


# -- rows of a table ------------------------------------------------------------------------------------------------


def _embedding(node: fx.Node) -> Rule:
    """`v h, i -> i h`."""
    table, indices = (a.meta["val"] for a in tensor_arguments(node))
    rows, columns = _dims("d", table)
    return Rule(
        inputs=((rows, columns), _dims("i", indices)),
        outputs=((*_dims("i", indices), columns),),
        sizes=_sizes("d", table) | _sizes("i", indices),
        leading=frozenset({"d0"}),
        linear=_passes(table, 0),
        paddable=frozenset(_sizes("d", table) | _sizes("i", indices)),
        positions=frozenset({1}),
        lower=_lower_embedding,
    )


def _lower_embedding(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, indices, *rest = args
    axes = strategy.axes("d0")
    if not axes:
        return emit.call(node.target, table, indices, *rest, **kwargs)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, strategy.inputs[0], 0)
    rows = emit.call(aten.embedding.default, table, local)
    return _without(emit, rows, outside, [*outside.meta["val"].shape, 1])


def _embedding_backward(node: fx.Node) -> Rule:
    """`i h, i -> v h`: the sum over all positions. Scaled by frequency, only `h` may be cut."""
    grad, indices = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    rows, columns = _dims("d", result)
    sizes = _sizes("d", result) | _sizes("i", indices)
    scaled = argument(node, "scale_grad_by_freq")
    return Rule(
        inputs=((*_dims("i", indices), columns), _dims("i", indices)),
        outputs=((rows, columns),),
        sizes=sizes,
        leading=frozenset({"d0"}),
        linear=_passes(grad, 0),
        whole=frozenset(sizes) - {"d1"} if scaled else frozenset(),
        paddable=frozenset(sizes),
        lower=_lower_embedding_backward,
    )


def _lower_embedding_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    grad, indices, rows, padding, scaled = args
    axes = strategy.axes("d0")
    if not axes:
        return emit.call(node.target, grad, indices, rows, padding, scaled)  # type: ignore[no-any-return]
    placement = strategy.outputs[0]
    assert placement is not None
    size = placement.local_shape(emit.grid)[0]
    local, outside = _local_index(emit, indices, placement, 0)
    if padding >= 0:
        outside = emit.call(aten.logical_or.default, outside, emit.call(aten.eq.Scalar, indices, padding))
    kept = _without(emit, grad, outside, [*outside.meta["val"].shape, 1])
    return emit.call(node.target, kept, local, size, -1, scaled)  # type: ignore[no-any-return]


def _index_select(node: fx.Node) -> Rule:
    """`v h, i -> i h`, the rows along any dim."""
    table, indices = (a.meta["val"] for a in tensor_arguments(node))
    dim = argument(node, "dim") % max(table.dim(), 1)
    out = list(_dims("d", table))
    out[dim] = ("i0",) if indices.numel() > 1 else ()
    return Rule(
        inputs=(_dims("d", table), _dims("i", indices)),
        outputs=(tuple(out),),
        sizes=_sizes("d", table) | _sizes("i", indices),
        leading=frozenset({f"d{dim}"}),
        linear=_passes(table, 0),
        paddable=frozenset(_sizes("d", table) | _sizes("i", indices)),
        positions=frozenset({1}),
        lower=_lower_index_select,
    )


def _lower_index_select(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices = args
    tensor = table.meta["val"]
    dim %= max(tensor.dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, strategy.inputs[0], dim)
    rows = emit.call(node.target, table, dim, local)
    return _without(emit, rows, outside, [-1, *(1 for _ in tensor.shape[dim + 1 :])])


def _index_add(node: fx.Node) -> Rule:
    """`v h, i, i h -> v h`: rows are added to a table."""
    table, indices, source = (a.meta["val"] for a in tensor_arguments(node))
    dim = argument(node, "dim") % max(table.dim(), 1)
    rows = list(_dims("d", table))
    rows[dim] = ("i0",) if source.shape[dim] > 1 else ()
    return Rule(
        inputs=(_dims("d", table), _dims("i", indices), tuple(rows)),
        outputs=(_dims("d", table),),
        sizes=_sizes("d", table) | _sizes("i", indices),
        whole=frozenset({"i0"}),
        leading=frozenset({f"d{dim}"}),
        linear=_passes(table, 0, 2),
        paddable=frozenset(_sizes("d", table)),
        positions=frozenset({1}),
        lower=_lower_index_add,
    )


def _lower_index_add(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices, source = args
    tensor = table.meta["val"]
    dim %= max(tensor.dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if axes:
        indices, outside = _local_index(emit, indices, strategy.inputs[0], dim)
        source = _without(emit, source, outside, [-1, *(1 for _ in tensor.shape[dim + 1 :])])
    return emit.call(node.target, table, dim, indices, source, **kwargs)  # type: ignore[no-any-return]


# -- an index for each element --------------------------------------------------------------------------------------


def _elementwise(node: fx.Node) -> tuple[Term, Term, dict[str, int], frozenset[str], str]:
    """The terms of a table and of an index into one of its dims, the sizes, the free factors, and that dim's.

    The other dims must be as long in the index as in the table, or nothing is free.
    """
    table, indices, *others = (a.meta["val"] for a in tensor_arguments(node))
    dim = argument(node, "dim") % max(table.dim(), 1)
    aligned = all(t == i for d, (t, i) in enumerate(zip(table.shape, indices.shape, strict=True)) if d != dim)
    aligned = aligned and all(other.shape == indices.shape for other in others)
    picks = tuple(
        ((f"d{d}" if aligned and d != dim else f"i{d}"),) if size > 1 else () for d, size in enumerate(indices.shape)
    )
    sizes = _sizes("d", table) | _sizes("i", indices)
    return _dims("d", table), picks, sizes, frozenset(sizes) if aligned else frozenset(), f"d{dim}"


def _gather(node: fx.Node) -> Rule:
    """`n v, n i -> n i`."""
    table, picks, sizes, free, along = _elementwise(node)
    return Rule(
        inputs=(table, picks),
        outputs=(picks,),
        sizes=sizes,
        whole=frozenset(sizes) - free,
        leading=frozenset({along}),
        linear=_passes(tensor_arguments(node)[0].meta["val"], 0),
        paddable=frozenset(sizes),
        positions=frozenset({1}),
        lower=_lower_gather,
    )


def _lower_gather(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices = args[:3]
    dim %= max(table.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args, **kwargs)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, strategy.inputs[0], dim)
    found = emit.call(aten.gather.default, table, dim, local)
    return emit.call(aten.masked_fill.Scalar, found, outside, 0)  # type: ignore[no-any-return]


def _scatter(node: fx.Node) -> Rule:
    """`n v, n 1, n 1 -> n v`: an element of each row is set; with more of them per row, the dim is whole."""
    table, picks, sizes, free, along = _elementwise(node)
    several = argument(node, "index").meta["val"].shape[int(along[1:]) : int(along[1:]) + 1] != (1,)
    whole = frozenset(sizes) - free | {f"i{along[1:]}"}
    sources = argument(node, "src")
    tensor = tensor_arguments(node)[0].meta["val"]
    return Rule(
        inputs=(table, picks, picks) if sources is not None else (table, picks),
        outputs=(table,),
        sizes=sizes,
        whole=whole | {along} if several else whole,
        leading=frozenset({along}),
        linear=_passes(tensor, 0, 2) if sources is not None else (),
        paddable=frozenset(sizes),
        positions=frozenset({1}),
        lower=_lower_scatter,
    )


def _lower_scatter(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices, new = args
    dim %= max(table.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args, **kwargs)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, strategy.inputs[0], dim)
    old = emit.call(aten.gather.default, table, dim, local)
    if node.target is aten.scatter.value:
        new = emit.call(aten.full.default, list(old.meta["val"].shape), new, dtype=old.meta["val"].dtype,
                        device=old.meta["val"].device)  # fmt: skip
    chosen = emit.call(aten.where.self, outside, old, new)
    return emit.call(aten.scatter.src, table, dim, local, chosen)  # type: ignore[no-any-return]


def _scatter_add(node: fx.Node) -> Rule:
    """`n v, n i, n i -> n v`."""
    table, picks, sizes, free, along = _elementwise(node)
    return Rule(
        inputs=(table, picks, picks),
        outputs=(table,),
        sizes=sizes,
        whole=frozenset(sizes) - free | {f"i{along[1:]}"},
        leading=frozenset({along}),
        linear=_passes(tensor_arguments(node)[0].meta["val"], 0, 2),
        paddable=frozenset(sizes),
        positions=frozenset({1}),
        lower=_lower_scatter_add,
    )


def _lower_scatter_add(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices, source = args
    dim %= max(table.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if axes:
        indices, outside = _local_index(emit, indices, strategy.inputs[0], dim)
        source = emit.call(aten.masked_fill.Scalar, source, outside, 0)
    return emit.call(node.target, table, dim, indices, source)  # type: ignore[no-any-return]


def _scatter_reduce(node: fx.Node) -> Rule:
    """`n [v], n [i], n [i] -> n [v]`: what meets at a position is multiplied, averaged, or the largest of it kept."""
    table, picks, sizes, free, along = _elementwise(node)
    return Rule(
        inputs=(table, picks, picks),
        outputs=(table,),
        sizes=sizes,
        whole=frozenset(sizes) - free | {along, f"i{along[1:]}"},
        positions=frozenset({1}),
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.gather.default: _gather,
    aten.index_add.default: _index_add,
    aten.index_select.default: _index_select,
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter,
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter_reduce,
}
