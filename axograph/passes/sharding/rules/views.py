"""Rules of operators that show the same elements in another shape: reshape by common factors, permute, expand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def factorize(source: Sequence[int], target: Sequence[int]) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """The common factors of two shapes with as many elements: which factors make up each dim, and their sizes.

    Factors that only one side has are private to it. Dims of size 1 have no factors.

    >>> factorize((8, 6), (48,))
    ([[0], [1]], [[0, 1]], [8, 6])
    >>> factorize((6, 4), (4, 6))
    ([[0, 1], [4]], [[0, 2], [3]], [2, 3, 2, 6, 4])
    """
    sizes: list[int] = []
    left: list[list[int]] = [[] for _ in source]
    right: list[list[int]] = [[] for _ in target]
    a = [(dim, size) for dim, size in enumerate(source) if size > 1]
    b = [(dim, size) for dim, size in enumerate(target) if size > 1]

    def private(side: list[list[int]], dim: int, size: int) -> None:
        if size > 1:
            side[dim].append(len(sizes))
            sizes.append(size)

    while a and b:
        (i, m), (j, n) = a.pop(0), b.pop(0)
        shared = math.gcd(m, n)
        if shared > 1:
            left[i].append(len(sizes))
            right[j].append(len(sizes))
            sizes.append(shared)
        m, n = m // shared, n // shared
        if m > 1 and n > 1:
            _diverge(private, [(left, i, m, a), (right, j, n, b)])
        elif m > 1:
            a.insert(0, (i, m))
        elif n > 1:
            b.insert(0, (j, n))
    return left, right, sizes


def _diverge(private: Any, sides: list[tuple[list[list[int]], int, int, list[tuple[int, int]]]]) -> None:
    """What is left of two dims shares nothing: nor does what follows, until both sides have as many elements."""
    done = []
    for side, dim, size, _ in sides:
        private(side, dim, size)
        done.append(size)
    while done[0] != done[1]:
        behind = 0 if done[0] < done[1] else 1
        side, _, _, rest = sides[behind]
        dim, size = rest.pop(0)
        private(side, dim, size)
        done[behind] *= size


def _reshape(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    if result.numel() == 0:
        return _nothing(argument, result)
    left, right, sizes = factorize(argument.shape, result.shape)
    shared = {f for dim in left for f in dim} & {f for dim in right for f in dim}
    return Rule(
        inputs=(_terms(left),),
        outputs=(_terms(right),),
        sizes={f"f{i}": size for i, size in enumerate(sizes)},
        whole=frozenset(f"f{i}" for i in range(len(sizes)) if i not in shared),
        linear=_passes(argument),
        is_view=True,
        lower=_lower_shaped,
    )


def _nothing(argument: torch.Tensor, result: torch.Tensor) -> Rule:
    left = tuple((f"a{d}",) for d in range(argument.dim()))
    right = tuple((f"b{d}",) for d in range(result.dim()))
    sizes = {name: max(size, 1) for (name,), size in zip(left + right, (*argument.shape, *result.shape), strict=True)}
    return Rule(inputs=(left,), outputs=(right,), sizes=sizes, whole=frozenset(sizes), is_view=True)


def _terms(dims: list[list[int]]) -> Term:
    return tuple(tuple(f"f{factor}" for factor in dim) for dim in dims)


def _passes(argument: torch.Tensor) -> tuple[frozenset[int], ...]:
    return (frozenset({0}),) if argument.is_floating_point() else ()


def _lower_shaped(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The same operator, to the local shape."""
    placement = strategy.outputs[0]
    assert placement is not None
    shape = list(placement.local_shape(emit.grid))
    if node.target is aten.reshape.default and list(args[0].meta["val"].shape) == shape:
        same: fx.Node = args[0]
        return same
    made: fx.Node = emit.call(node.target, args[0], shape)
    return made


def _names(tensor: torch.Tensor) -> list[tuple[str, ...]]:
    return [(f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape)]


def _permute(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    names = _names(argument)
    order: Any = node.args[1]
    return Rule(
        inputs=(tuple(names),),
        outputs=(tuple(names[dim] for dim in order),),
        sizes={f"d{dim}": size for dim, size in enumerate(argument.shape)},
        linear=_passes(argument),
        is_view=True,
    )


def _expand(node: fx.Node) -> Rule:
    """A new dim, or one of size 1, is repeated: its copies may be cut."""
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    first = result.dim() - argument.dim()
    source = tuple((f"d{first + dim}",) if size > 1 else () for dim, size in enumerate(argument.shape))
    return Rule(
        inputs=(source,),
        outputs=(tuple(_names(result)),),
        sizes={f"d{dim}": size for dim, size in enumerate(result.shape)},
        linear=_passes(argument),
        is_view=True,
        lower=_lower_shaped,
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.reshape.default: _reshape,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
}
