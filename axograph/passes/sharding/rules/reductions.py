"""Rules of reductions over dims, and of operators that work along one dim and leave the others alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def _names(tensor: torch.Tensor) -> list[tuple[str, ...]]:
    return [(f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape)]


def _sizes(tensor: torch.Tensor) -> dict[str, int]:
    return {f"d{dim}": size for dim, size in enumerate(tensor.shape)}


def _reduction(node: fx.Node) -> Rule:
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    dims = _reduced_dims(node, argument.dim())
    keep = node.meta["val"].dim() == argument.dim() and argument.dim() > 0
    names = _names(argument)
    out: Term = tuple(() if d in dims else name for d, name in enumerate(names) if keep or d not in dims)
    linear = (frozenset({0}),) if argument.is_floating_point() else ()
    return Rule(inputs=(tuple(names),), outputs=(out,), sizes=_sizes(argument), linear=linear)


def _reduced_dims(node: fx.Node, rank: int) -> set[int]:
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None or given == []:
        return set(range(rank))
    return {dim % rank for dim in ([given] if isinstance(given, int) else given)} if rank else set()


def _mean(node: fx.Node) -> Rule:
    return replace(_reduction(node), lower=_lower_mean)


def _lower_mean(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The mean is the sum of the means of equal parts, divided by their number."""
    mean: fx.Node = emit.call(node.target, *args, **kwargs)
    argument = tensor_arguments(node)[0].meta["val"]
    summed = [f"d{dim}" for dim in _reduced_dims(node, argument.dim())]
    parts = emit.grid.extent(strategy.axes(*summed))
    return mean if parts == 1 else emit.call(aten.div.Scalar, mean, parts)


def _maximum(node: fx.Node) -> Rule:
    made = _reduction(node)
    return replace(made, linear=(), reduction="max")


def _minimum(node: fx.Node) -> Rule:
    made = _reduction(node)
    argument = tensor_arguments(node)[0].meta["val"]
    reduced = {f"d{dim}" for dim in _reduced_dims(node, argument.dim())}
    return replace(made, linear=(), whole=frozenset(reduced))


def _along(position: int, default: Any = -1, linear: bool = False) -> Callable[[fx.Node], Rule]:
    """An operator along the dim or dims in this argument: they are whole, the others free."""

    def rule(node: fx.Node) -> Rule:
        argument: torch.Tensor = tensor_arguments(node)[0].meta["val"]
        given: Any = node.args[position] if len(node.args) > position else node.kwargs.get("dim", default)
        if given is None:
            dims = set(range(argument.dim()))
        else:
            dims = {dim % max(argument.dim(), 1) for dim in ([given] if isinstance(given, int) else given)}
        names = _names(argument)
        outputs: list[Term | None] = []
        for output in output_tensors(node):
            if output is None:
                outputs.append(None)
            elif output.dim() == argument.dim():
                outputs.append(
                    tuple(() if output.shape[d] == 1 else _resized(d, d in dims) for d in range(output.dim()))
                )
            else:
                outputs.append(tuple(name for d, name in enumerate(names) if d not in dims))
        sizes = _sizes(argument)
        for output, term in zip(output_tensors(node), outputs, strict=True):
            if output is not None and term is not None and output.dim() == argument.dim():
                sizes.update({dim[0]: output.shape[d] for d, dim in enumerate(term) if dim})
        whole = frozenset(name for name in sizes if name.startswith("o") or int(name[1:]) in dims)
        passes = (frozenset({0}),) if linear and argument.is_floating_point() else ()
        return Rule(inputs=(tuple(names),), outputs=tuple(outputs), sizes=sizes, whole=whole, linear=passes)

    return rule


def _resized(dim: int, worked_along: bool) -> tuple[str, ...]:
    return (f"o{dim}",) if worked_along else (f"d{dim}",)


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.sum.dim_IntList: _reduction,
    aten.mean.dim: _mean,
    aten.amax.default: _maximum,
    aten.amin.default: _minimum,
    aten.cumsum.default: _along(1, linear=True),
    aten.cumprod.default: _along(1),
    aten.logcumsumexp.default: _along(1),
    aten.argmax.default: _along(1, None),
    aten.argmin.default: _along(1, None),
    aten.max.dim: _along(1),
    aten.min.dim: _along(1),
    aten.sort.default: _along(1),
    aten.sort.stable: _along(2),
    aten.topk.default: _along(2),
    aten.flip.default: _along(1, linear=True),
    aten.roll.default: _along(2, None, linear=True),
    aten.any.dim: _along(1),
    aten.all.dim: _along(1),
    aten.var_mean.correction: _along(1, None),
    aten.logsumexp.default: _along(1),
}
