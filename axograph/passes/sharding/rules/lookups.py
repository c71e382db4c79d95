"""Rules of lookups: over a cut dim they become a masked local lookup and a partial sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def _dims(prefix: str, tensor: torch.Tensor) -> Term:
    return tuple((f"{prefix}{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))


def _sizes(prefix: str, tensor: torch.Tensor) -> dict[str, int]:
    return {f"{prefix}{dim}": size for dim, size in enumerate(tensor.shape)}


def _embedding(node: fx.Node) -> Rule:
    """`v h, i -> i h`."""
    table, indices = (a.meta["val"] for a in tensor_arguments(node))
    return Rule(
        inputs=(_term("v", "h", table), _dims("i", indices)),
        outputs=((*_dims("i", indices), *_term("v", "h", table)[1:]),),
        sizes={"v": table.shape[0], "h": table.shape[1], **_sizes("i", indices)},
        leading=frozenset({"v"}),
        lower=_lower_embedding,
    )


def _term(rows: str, columns: str, table: torch.Tensor) -> Term:
    return tuple((name,) if size > 1 else () for name, size in zip((rows, columns), table.shape, strict=True))


def _local_index(emit: Any, indices: fx.Node, size: int, axes: tuple[str, ...]) -> tuple[fx.Node, fx.Node]:
    """The positions in this rank's range of `size`, and which of them lie outside of it (there the position is 0)."""
    first = emit.call(aten.mul.Scalar, emit.coordinate(axes), size)
    local = emit.call(aten.sub.Tensor, indices, first)
    outside = emit.call(
        aten.logical_or.default, emit.call(aten.lt.Scalar, local, 0), emit.call(aten.ge.Scalar, local, size)
    )
    return emit.call(aten.masked_fill.Scalar, local, outside, 0), outside


def _lower_embedding(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, indices, *rest = args
    axes = strategy.axes("v")
    if not axes:
        return emit.call(node.target, table, indices, *rest, **kwargs)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, table.meta["val"].shape[0], axes)
    rows = emit.call(aten.embedding.default, table, local)
    mask = emit.call(aten.reshape.default, outside, [*outside.meta["val"].shape, 1])
    return emit.call(aten.masked_fill.Scalar, rows, mask, 0)  # type: ignore[no-any-return]


def _embedding_backward(node: fx.Node) -> Rule:
    """`i h, i -> v h`: the sum over all positions."""
    grad, indices = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    table = _term("v", "h", result)
    return Rule(
        inputs=((*_dims("i", indices), *table[1:]), _dims("i", indices)),
        outputs=(table,),
        sizes={"v": result.shape[0], "h": result.shape[1], **_sizes("i", indices)},
        leading=frozenset({"v"}),
        linear=(frozenset({0}),) if not _scaled_by_frequency(node) else (),
        whole=frozenset(_sizes("i", indices)) if _scaled_by_frequency(node) else frozenset(),
        lower=_lower_embedding_backward,
    )


def _scaled_by_frequency(node: fx.Node) -> bool:
    return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("scale_grad_by_freq", False))


def _lower_embedding_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    grad, indices, rows, padding, scaled = args
    axes = strategy.axes("v")
    if not axes:
        return emit.call(node.target, grad, indices, rows, padding, scaled)  # type: ignore[no-any-return]
    placement = strategy.outputs[0]
    assert placement is not None
    size = placement.local_shape(emit.grid)[0]
    local, outside = _local_index(emit, indices, size, axes)
    if padding >= 0:
        outside = emit.call(aten.logical_or.default, outside, emit.call(aten.eq.Scalar, indices, padding))
    mask = emit.call(aten.reshape.default, outside, [*outside.meta["val"].shape, 1])
    kept = emit.call(aten.masked_fill.Scalar, grad, mask, 0)
    return emit.call(node.target, kept, local, size, -1, scaled)  # type: ignore[no-any-return]


def _gather(node: fx.Node) -> Rule:
    """One element per position, `n v, n 1 -> n 1`; with more of them per row, the dim is whole."""
    table, indices = (a.meta["val"] for a in tensor_arguments(node))
    dim = int(node.args[1]) % max(table.dim(), 1)  # type: ignore[arg-type]
    return _picked(node, table, indices, dim, (lambda t, i: (t, i), lambda t, i: i), _lower_gather)


def _picked(node: fx.Node, table: torch.Tensor, indices: torch.Tensor, dim: int, terms: Any, lower: Any) -> Rule:
    single = table.dim() > 0 and indices.shape[dim] == 1
    aligned = all(t == i for d, (t, i) in enumerate(zip(table.shape, indices.shape, strict=True)) if d != dim)
    names: list[tuple[str, ...]] = []
    picks: list[tuple[str, ...]] = []
    sizes: dict[str, int] = {}
    for d, (size, count) in enumerate(zip(table.shape, indices.shape, strict=True)):
        sizes |= {f"d{d}": size, f"i{d}": count}
        names.append((f"d{d}",) if size > 1 else ())
        same = aligned and d != dim
        picks.append(((f"d{d}",) if same else (f"i{d}",)) if count > 1 else ())
    free = {f"d{d}" for d in range(table.dim()) if aligned and (d != dim or single)}
    sources, target = terms
    return Rule(
        inputs=tuple(sources(tuple(names), tuple(picks))),
        outputs=(target(tuple(names), tuple(picks)),),
        sizes=sizes,
        whole=frozenset(sizes) - free,
        leading=frozenset({f"d{dim}"}),
        lower=lower,
    )


def _lower_gather(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices = args[:3]
    dim %= max(table.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args, **kwargs)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, table.meta["val"].shape[dim], axes)
    found = emit.call(aten.gather.default, table, dim, local)
    return emit.call(aten.masked_fill.Scalar, found, outside, 0)  # type: ignore[no-any-return]


def _scatter_value(node: fx.Node) -> Rule:
    """One element per row is set, `n v, n 1 -> n v`."""
    table, indices = (a.meta["val"] for a in tensor_arguments(node))
    dim = int(node.args[1]) % max(table.dim(), 1)  # type: ignore[arg-type]
    return _picked(node, table, indices, dim, (lambda t, i: (t, i), lambda t, i: t), _lower_scatter_value)


def _lower_scatter_value(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    table, dim, indices, value = args
    dim %= max(table.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, table, dim, indices, value)  # type: ignore[no-any-return]
    local, outside = _local_index(emit, indices, table.meta["val"].shape[dim], axes)
    old = emit.call(aten.gather.default, table, dim, local)
    new = emit.call(aten.full.default, list(old.meta["val"].shape), value, dtype=old.meta["val"].dtype)
    chosen = emit.call(aten.where.self, outside, old, new)
    return emit.call(aten.scatter.src, table, dim, local, chosen)  # type: ignore[no-any-return]


def _index(node: fx.Node) -> Rule:
    """`x[i, j]` with index tensors: the indexed dims of x are whole, the dims of the indices are free."""
    given: Any = node.args[1]
    table: torch.Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    indices = [i.meta["val"] for i in given if i is not None]
    shape = torch.broadcast_shapes(*(i.shape for i in indices))
    at = [d for d, i in enumerate(given) if i is not None]
    names = [(f"d{d}",) if size > 1 else () for d, size in enumerate(table.shape)]
    broadcast = [(f"i{d}",) if size > 1 else () for d, size in enumerate(shape)]
    kept = [name for d, name in enumerate(names) if d not in at]
    together = at == list(range(at[0], at[-1] + 1))
    out = [*kept[: at[0]], *broadcast, *kept[at[0] :]] if together else [*broadcast, *kept]
    sizes = {f"d{d}": size for d, size in enumerate(table.shape)} | {f"i{d}": size for d, size in enumerate(shape)}

    def term(index: torch.Tensor) -> Term:
        first = len(shape) - index.dim()
        return tuple((f"i{first + d}",) if size > 1 else () for d, size in enumerate(index.shape))

    whole = {f"d{d}" for d in at}
    if any(index.dtype == torch.bool for index in indices):
        whole = set(sizes)
    return Rule(
        inputs=(tuple(names), *(term(index) for index in indices)),
        outputs=(tuple(out),),
        sizes=sizes,
        whole=frozenset(whole),
        linear=(frozenset({0}),) if table.is_floating_point() else (),
    )


def _index_select(node: fx.Node) -> Rule:
    table, indices = (a.meta["val"] for a in tensor_arguments(node))
    dim = int(node.args[1]) % max(table.dim(), 1)  # type: ignore[arg-type]
    names = [(f"d{d}",) if size > 1 else () for d, size in enumerate(table.shape)]
    out = list(names)
    out[dim] = ("i",) if indices.numel() > 1 else ()
    return Rule(
        inputs=(tuple(names), (("i",) if indices.numel() > 1 else (),)[: indices.dim()]),
        outputs=(tuple(out),),
        sizes={f"d{d}": size for d, size in enumerate(table.shape)} | {"i": indices.numel()},
        whole=frozenset({f"d{dim}"}),
        linear=(frozenset({0}),) if table.is_floating_point() else (),
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.gather.default: _gather,
    aten.scatter.value: _scatter_value,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
}
