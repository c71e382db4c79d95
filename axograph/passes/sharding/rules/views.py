"""Rules of operators that move elements without computing: reshape, permute, expand, slice, concatenate, pad."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    return Rule(
        inputs=(_terms(left),),
        outputs=(_terms(right),),
        sizes={f"f{i}": size for i, size in enumerate(sizes)},
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


def _blocks(whole: int, part: int) -> bool:
    """Whether a dim is an even row of such parts."""
    return part > 0 and whole % part == 0


def _slice(node: fx.Node) -> Rule:
    """A slice that is one of several equal blocks may be cut inside the blocks; any other dim of a slice is whole."""
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    dim, start, end, step = (*node.args[1:], 1)[:4]
    assert isinstance(dim, int) and isinstance(start, int)
    return _sliced(argument, result, dim, start, step == 1, _lower_slice)


def _sliced(
    whole: torch.Tensor, part: torch.Tensor, dim: int, start: int, dense: bool, lower: Any, backward: bool = False
) -> Rule:
    names = {"whole": _names(whole), "part": _names(part)}
    sizes = {f"d{d}": size for d, size in enumerate(whole.shape)}
    fixed: set[str] = set()
    if dense and _blocks(whole.shape[dim], part.shape[dim]) and start % max(part.shape[dim], 1) == 0:
        sizes |= {"block": whole.shape[dim] // part.shape[dim], f"d{dim}": part.shape[dim]}
        fixed = {"block"}
        names["whole"][dim] = tuple(f for f in ("block", f"d{dim}") if sizes[f] > 1)
        names["part"][dim] = (f"d{dim}",) if part.shape[dim] > 1 else ()
    else:
        sizes |= {"part": part.shape[dim]}
        fixed = {f"d{dim}", "part"}
        names["part"][dim] = ("part",) if part.shape[dim] > 1 else ()
    terms = (tuple(names["whole"]), tuple(names["part"]))
    source, target = terms[::-1] if backward else terms
    return Rule(
        inputs=(source,),
        outputs=(target,),
        sizes=sizes,
        whole=frozenset(fixed),
        linear=_passes(whole),
        is_view=not backward,
        lower=lower,
    )


def _lower_slice(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """Blocks keep their number, so a local block is found at the same place among shorter ones."""
    placement = strategy.outputs[0]
    assert placement is not None
    x, dim, start, end, *step = args
    was, now = node.meta["val"].shape[dim], placement.local_shape(emit.grid)[dim]
    if was != now:
        start, end = start // was * now, start // was * now + now
    made: fx.Node = emit.call(aten.slice.Tensor, x, dim, start, end, *step)
    return made


def _slice_backward(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    _, _, dim, start, _, step = node.args
    assert isinstance(dim, int) and isinstance(start, int)
    dim %= argument.dim()
    result: torch.Tensor = node.meta["val"]
    return _sliced(result, argument, dim, start, step == 1, _lower_slice_backward, backward=True)


def _lower_slice_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    placement = strategy.outputs[0]
    assert placement is not None
    grad, _, dim, start, end, step = args
    was = tensor_arguments(node)[0].meta["val"].shape[dim]
    now = grad.meta["val"].shape[dim]
    if was != now:
        start, end = start // was * now, start // was * now + now
    made: fx.Node = emit.call(node.target, grad, list(placement.local_shape(emit.grid)), dim, start, end, step)
    return made


def _select(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    dim = int(node.args[1]) % argument.dim()  # type: ignore[arg-type]
    names = _names(argument)
    return Rule(
        inputs=(tuple(names),),
        outputs=(tuple(name for d, name in enumerate(names) if d != dim),),
        sizes={f"d{d}": size for d, size in enumerate(argument.shape)},
        whole=frozenset({f"d{dim}"}),
        linear=_passes(argument),
        is_view=True,
    )


def _select_backward(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    dim = int(node.args[2]) % result.dim()  # type: ignore[arg-type]
    names = _names(result)
    return Rule(
        inputs=(tuple(name for d, name in enumerate(names) if d != dim),),
        outputs=(tuple(names),),
        sizes={f"d{d}": size for d, size in enumerate(result.shape)},
        whole=frozenset({f"d{dim}"}),
        linear=_passes(argument),
        lower=_lower_select_backward,
    )


def _lower_select_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    placement = strategy.outputs[0]
    assert placement is not None
    made: fx.Node = emit.call(node.target, args[0], list(placement.local_shape(emit.grid)), *args[2:])
    return made


def _cat(node: fx.Node) -> Rule:
    """Equal pieces may be cut inside; unequal ones are whole along the dim they are joined on."""
    pieces = [argument.meta["val"] for argument in tensor_arguments(node)]
    result: torch.Tensor = node.meta["val"]
    dim = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % result.dim()  # type: ignore[arg-type]
    terms = [_names(piece) if piece.dim() == result.dim() else [("empty",)] for piece in pieces]
    out = _names(result)
    sizes = {f"d{d}": size for d, size in enumerate(result.shape)} | {"empty": 1}
    lengths = {piece.shape[dim] if piece.dim() == result.dim() else -1 for piece in pieces}
    fixed = {"empty"}
    if len(lengths) == 1:
        sizes |= {"piece": len(pieces), f"d{dim}": lengths.pop()}
        fixed |= {"piece"}
        out[dim] = tuple(f for f in ("piece", f"d{dim}") if sizes[f] > 1)
    else:
        for i, piece in enumerate(pieces):
            if piece.dim() == result.dim():
                sizes[f"p{i}"] = piece.shape[dim]
                terms[i][dim] = (f"p{i}",) if piece.shape[dim] > 1 else ()
        fixed |= {name for name in sizes if name.startswith("p")} | {f"d{dim}"}
    return Rule(
        inputs=tuple(tuple(term) for term in terms),
        outputs=(tuple(out),),
        sizes=sizes,
        whole=frozenset(fixed),
        linear=(frozenset(range(len(pieces))),) if result.is_floating_point() else (),
    )


def _pad(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    source, target = _names(argument), _names(result)
    sizes = {f"d{d}": size for d, size in enumerate(argument.shape)}
    fixed = set()
    for dim, (was, now) in enumerate(zip(argument.shape, result.shape, strict=True)):
        if was != now:
            sizes[f"o{dim}"] = now
            target[dim] = (f"o{dim}",) if now > 1 else ()
            fixed |= {f"d{dim}", f"o{dim}"}
    zero = len(node.args) < 3 or node.args[2] == 0
    return Rule(
        inputs=(tuple(source),),
        outputs=(tuple(target),),
        sizes=sizes,
        whole=frozenset(fixed),
        linear=_passes(argument) if zero else (),
    )


def _triangle(node: fx.Node) -> Rule:
    """The last two dims are whole: which elements stay depends on their positions."""
    made = _permute_like(node)
    rank = node.meta["val"].dim()
    return replace(made, whole=frozenset({f"d{rank - 1}", f"d{rank - 2}"}))


def _permute_like(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    term = tuple(_names(argument))
    sizes = {f"d{d}": size for d, size in enumerate(argument.shape)}
    return Rule(inputs=(term,), outputs=(term,), sizes=sizes, linear=_passes(argument))


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.reshape.default: _reshape,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _slice_backward,
    aten.select.int: _select,
    aten.select_backward.default: _select_backward,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
}
