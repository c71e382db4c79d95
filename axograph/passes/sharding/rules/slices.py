"""Rules of operators that take parts of a tensor or put parts together: slice, select, concatenate, pad, triangles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def _names(tensor: torch.Tensor) -> list[tuple[str, ...]]:
    return [(f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape)]


def _sizes(tensor: torch.Tensor) -> dict[str, int]:
    return {f"d{d}": size for d, size in enumerate(tensor.shape)}


def _passes(tensor: torch.Tensor, *inputs: int) -> tuple[frozenset[int], ...]:
    """These inputs may be partial sums together, where they are numbers that sum up."""
    return (frozenset(inputs or (0,)),) if tensor.is_floating_point() else ()


def _slice(node: fx.Node) -> Rule:
    """A slice that is one of several equal blocks may be cut inside the blocks; any other dim of a slice is whole."""
    whole, part = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    source, target, sizes, fixed = _blocks(node, whole, part)
    return Rule(
        inputs=(source,),
        outputs=(target,),
        sizes=sizes,
        whole=fixed,
        linear=_passes(whole),
        is_view=True,
        lower=_lower_slice,
    )


def _slice_backward(node: fx.Node) -> Rule:
    part, whole = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    target, source, sizes, fixed = _blocks(node, whole, part)
    return Rule(
        inputs=(source,),
        outputs=(target,),
        sizes=sizes,
        whole=fixed,
        linear=_passes(whole),
        paddable=frozenset(sizes),
        lower=_lower_slice_backward,
    )


def _slice_scatter(node: fx.Node) -> Rule:
    whole, part = (a.meta["val"] for a in tensor_arguments(node))
    target, source, sizes, fixed = _blocks(node, whole, part)
    return Rule(
        inputs=(target, source),
        outputs=(target,),
        sizes=sizes,
        whole=fixed,
        linear=_passes(whole, 0, 1),
        paddable=frozenset(sizes),
        lower=_lower_slice_scatter,
    )


def _blocks(
    node: fx.Node, whole: torch.Tensor, part: torch.Tensor
) -> tuple[Term, Term, dict[str, int], frozenset[str]]:
    """The terms of a tensor and of a slice of it, the sizes, and what is whole. Bounds of slices are normal."""
    dim, start, step = (argument(node, name) for name in ("dim", "start", "step"))
    assert isinstance(dim, int)
    assert isinstance(start, int)
    assert start >= 0
    dim %= whole.dim()
    outer, inner = _names(whole), _names(part)
    sizes = _sizes(whole)
    size, count = whole.shape[dim], part.shape[dim]
    if step == 1 and count > 0 and size % count == 0 and start % count == 0:
        sizes |= {"block": size // count, f"d{dim}": count}
        outer[dim] = tuple(name for name in ("block", f"d{dim}") if sizes[name] > 1)
        return tuple(outer), tuple(inner), sizes, frozenset({"block"})
    sizes["part"] = count
    inner[dim] = ("part",) if count > 1 else ()
    return tuple(outer), tuple(inner), sizes, frozenset({f"d{dim}", "part"})


def _bounds(node: fx.Node, was: int, now: int) -> tuple[int, int]:
    """Blocks keep their number, so a local block is found at the same place among shorter ones."""
    start, end = argument(node, "start"), argument(node, "end")
    return (start, end) if was == now else (start // was * now, start // was * now + now)


def _lower_slice(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    placement = strategy.outputs[0]
    assert placement is not None
    x, dim, *_ = args
    start, end = _bounds(node, node.meta["val"].shape[dim], placement.local_shape(emit.grid)[dim])
    made: fx.Node = emit.call(aten.slice.Tensor, x, dim, start, end, argument(node, "step"))
    return made


def _lower_slice_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    placement = strategy.outputs[0]
    assert placement is not None
    grad, _, dim, _, _, step = args
    was = tensor_arguments(node)[0].meta["val"].shape[dim]
    start, end = _bounds(node, was, grad.meta["val"].shape[dim])
    made: fx.Node = emit.call(node.target, grad, list(placement.local_shape(emit.grid)), dim, start, end, step)
    return made


def _lower_slice_scatter(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    whole, part, dim, *_ = args
    was = tensor_arguments(node)[1].meta["val"].shape[dim]
    start, end = _bounds(node, was, part.meta["val"].shape[dim])
    made: fx.Node = emit.call(node.target, whole, part, dim, start, end, argument(node, "step"))
    return made


def _select(node: fx.Node) -> Rule:
    """The dim that a position is chosen of is whole."""
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    dim = argument(node, "dim") % tensor.dim()
    names = tuple(_names(tensor))
    return Rule(
        inputs=(names,),
        outputs=(_without(names, dim),),
        sizes=_sizes(tensor),
        whole=frozenset({f"d{dim}"}),
        linear=_passes(tensor),
        is_view=True,
    )


def _without(term: Term, dim: int) -> Term:
    return term[:dim] + term[dim + 1 :]


def _select_backward(node: fx.Node) -> Rule:
    result: torch.Tensor = node.meta["val"]
    dim = argument(node, "dim") % result.dim()
    names = tuple(_names(result))
    return Rule(
        inputs=(_without(names, dim),),
        outputs=(names,),
        sizes=_sizes(result),
        whole=frozenset({f"d{dim}"}),
        linear=_passes(result),
        paddable=frozenset(_sizes(result)),
        lower=_lower_to_local_shape,
    )


def _lower_to_local_shape(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    placement = strategy.outputs[0]
    assert placement is not None
    made: fx.Node = emit.call(node.target, args[0], list(placement.local_shape(emit.grid)), *args[2:])
    return made


def _select_scatter(node: fx.Node) -> Rule:
    result: torch.Tensor = node.meta["val"]
    dim = argument(node, "dim") % result.dim()
    names = tuple(_names(result))
    return Rule(
        inputs=(names, _without(names, dim)),
        outputs=(names,),
        sizes=_sizes(result),
        whole=frozenset({f"d{dim}"}),
        linear=_passes(result, 0, 1),
    )


def _cat(node: fx.Node) -> Rule:
    """Equal pieces may be cut inside; unequal ones are whole along the dim they are joined on."""
    pieces = [a.meta["val"] for a in tensor_arguments(node)]
    result: torch.Tensor = node.meta["val"]
    dim = argument(node, "dim") % result.dim()
    terms = [_names(piece) for piece in pieces]
    out, sizes = _names(result), _sizes(result)
    lengths = [piece.shape[dim] if piece.dim() == result.dim() else 0 for piece in pieces]
    if len(set(lengths)) == 1:
        sizes |= {"piece": len(pieces), f"d{dim}": lengths[0]}
        fixed = {"piece"}
        out[dim] = tuple(name for name in ("piece", f"d{dim}") if sizes[name] > 1)
    else:
        sizes |= {f"p{i}": length for i, length in enumerate(lengths)}
        fixed = {f"d{dim}", *(f"p{i}" for i in range(len(pieces)))}
        for i, length in enumerate(lengths):
            if pieces[i].dim() == result.dim():  # an old way to start a concatenation is an empty vector
                terms[i][dim] = (f"p{i}",) if length > 1 else ()
    return Rule(
        inputs=tuple(tuple(term) for term in terms),
        outputs=(tuple(out),),
        sizes=sizes,
        whole=frozenset(fixed),
        linear=_passes(result, *range(len(pieces))),
    )


def _pad(node: fx.Node) -> Rule:
    """Dims that are padded or cropped are whole; zeros may be put around a partial sum."""
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    target, sizes = _names(result), _sizes(tensor)
    pad = argument(node, "pad")
    fixed = set()
    for i in range(0, len(pad), 2):
        dim = tensor.dim() - 1 - i // 2
        if any(pad[i : i + 2]):
            sizes[f"o{dim}"] = result.shape[dim]
            target[dim] = (f"o{dim}",) if result.shape[dim] > 1 else ()
            fixed |= {f"d{dim}", f"o{dim}"}
    return Rule(
        inputs=(tuple(_names(tensor)),),
        outputs=(tuple(target),),
        sizes=sizes,
        whole=frozenset(fixed),
        linear=_passes(tensor) if argument(node, "value") == 0 else (),
    )


def _triangle(node: fx.Node) -> Rule:
    """The last two dims are whole: which elements stay depends on their positions."""
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    term, rank = tuple(_names(tensor)), tensor.dim()
    return Rule(
        inputs=(term,),
        outputs=(term,),
        sizes=_sizes(tensor),
        whole=frozenset({f"d{rank - 1}", f"d{rank - 2}"}),
        linear=_passes(tensor),
    )


def _diagonal(node: fx.Node) -> Rule:
    """The two dims whose diagonal it is are whole."""
    tensor, result = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    dims = {argument(node, name) % tensor.dim() for name in ("dim1", "dim2")}
    kept = [name for d, name in enumerate(_names(tensor)) if d not in dims]
    return Rule(
        inputs=(tuple(_names(tensor)),),
        outputs=((*kept, ("diagonal",) if result.shape[-1] > 1 else ()),),
        sizes=_sizes(tensor) | {"diagonal": result.shape[-1]},
        whole=frozenset({"diagonal", *(f"d{dim}" for dim in dims)}),
        linear=_passes(tensor),
        is_view=True,
    )


def _diagonal_backward(node: fx.Node) -> Rule:
    """The gradient of a diagonal, with zeros around it."""
    part, whole, sizes, fixed = _around_a_diagonal(node, node.args[0].meta["val"])  # type: ignore[union-attr]
    return Rule(
        inputs=(part,),
        outputs=(whole,),
        sizes=sizes,
        whole=fixed,
        linear=_passes(node.meta["val"]),
        paddable=frozenset(sizes),
        lower=_lower_to_local_shape,
    )


def _diagonal_scatter(node: fx.Node) -> Rule:
    part, whole, sizes, fixed = _around_a_diagonal(node, tensor_arguments(node)[1].meta["val"])
    linear = _passes(node.meta["val"], 0, 1)
    return Rule(inputs=(whole, part), outputs=(whole,), sizes=sizes, whole=fixed, linear=linear)


def _around_a_diagonal(node: fx.Node, part: torch.Tensor) -> tuple[Term, Term, dict[str, int], frozenset[str]]:
    """The terms of a diagonal and of the tensor it is put into, the sizes, and what is whole."""
    result: torch.Tensor = node.meta["val"]
    dims = {argument(node, name) % result.dim() for name in ("dim1", "dim2")}
    names = _names(result)
    kept = [name for d, name in enumerate(names) if d not in dims]
    sizes = _sizes(result) | {"diagonal": part.shape[-1]}
    term = (*kept, ("diagonal",) if part.shape[-1] > 1 else ())
    return term, tuple(names), sizes, frozenset({"diagonal", *(f"d{dim}" for dim in dims)})


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _slice_backward,
    aten.slice_scatter.default: _slice_scatter,
    aten.select.int: _select,
    aten.select_backward.default: _select_backward,
    aten.select_scatter.default: _select_scatter,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
    aten.diagonal.default: _diagonal,
    aten.diagonal_backward.default: _diagonal_backward,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
}
