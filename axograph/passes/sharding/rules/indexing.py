"""Rules of `x[i, j]` with tensors of indices: the indexed dims are whole, the others and those of the indices free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, tensor_arguments
from axograph.passes.sharding.rule import Rule, Term

aten = torch.ops.aten


def _named(prefix: str, shape: torch.Size, rank: int) -> Term:
    """Factors aligned from the right with a shape of this rank."""
    first = rank - len(shape)
    return tuple((f"{prefix}{first + d}",) if size > 1 else () for d, size in enumerate(shape))


def _terms(node: fx.Node) -> tuple[Term, tuple[Term, ...], Term, dict[str, int], frozenset[str]]:
    """The terms of the table, of the indices, and of what they select; the sizes; the factors that are whole."""
    given = argument(node, "indices")
    table: torch.Tensor = argument(node, "self").meta["val"]
    indices = [index.meta["val"] for index in given if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in indices))  # type: ignore[no-untyped-call]
    at = [d for d, index in enumerate(given) if index is not None]
    names, broadcast = _named("d", table.shape, table.dim()), _named("i", shape, len(shape))
    kept = [name for d, name in enumerate(names) if d not in at]
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0  # indices apart from each other select in front
    selected = (*kept[:first], *broadcast, *kept[first:])
    sizes = {f"d{d}": size for d, size in enumerate(table.shape)} | {f"i{d}": size for d, size in enumerate(shape)}
    masks = any(index.dtype == torch.bool for index in indices)
    whole = frozenset(sizes) if masks else frozenset(f"d{d}" for d in at)
    return names, tuple(_named("i", index.shape, len(shape)) for index in indices), selected, sizes, whole


def _index(node: fx.Node) -> Rule:
    table, indices, selected, sizes, whole = _terms(node)
    floating = argument(node, "self").meta["val"].is_floating_point()
    return Rule(
        inputs=(table, *indices),
        outputs=(selected,),
        sizes=sizes,
        whole=whole,
        linear=(frozenset({0}),) if floating else (),
        positions=frozenset(range(1, len(indices) + 1)),
    )


def _index_put(node: fx.Node) -> Rule:
    """Values, broadcast to what the indices select, are put or added there; all of them by every rank."""
    table, indices, selected, sizes, whole = _terms(node)
    values: torch.Tensor = tensor_arguments(node)[-1].meta["val"]
    masks = whole == frozenset(sizes)
    if masks:
        sizes |= {f"v{d}": size for d, size in enumerate(values.shape)}
        given = _named("v", values.shape, values.dim())
    else:
        aligned = selected[len(selected) - values.dim() :]
        given = tuple(name if size > 1 else () for name, size in zip(aligned, values.shape, strict=True))
    return Rule(
        inputs=(table, *indices, given),
        outputs=(table,),
        sizes=sizes,
        whole=whole | {name for name in sizes if name[0] in "iv"},
        linear=(frozenset({0, len(indices) + 1}),) if values.is_floating_point() else (),
        positions=frozenset(range(1, len(indices) + 1)),
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}
