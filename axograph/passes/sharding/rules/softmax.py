"""Rules of softmax and its logarithm: over a cut dim, small all-reduces of the largest element and of the sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term
from axograph.passes.sharding.rules.accumulation import accumulated, cast

aten = torch.ops.aten


def _dims(tensor: torch.Tensor) -> Term:
    return tuple((f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))


def _along(
    count: int, lower: Any, linear: tuple[frozenset[int], ...] = (), fill: float = 0.0
) -> Callable[[fx.Node], Rule]:
    """All tensors have one shape; the dim worked along needs `count` all-reduces where it is cut."""

    def rule(node: fx.Node) -> Rule:
        arguments = tensor_arguments(node)
        tensor: torch.Tensor = arguments[0].meta["val"]
        dim = argument(node, "dim") % max(tensor.dim(), 1)
        sizes = {f"d{d}": size for d, size in enumerate(tensor.shape)}
        return Rule(
            inputs=tuple(_dims(tensor) for _ in arguments),
            outputs=(_dims(tensor),),
            sizes=sizes,
            statistics={f"d{dim}": count},
            linear=linear,
            paddable=frozenset(sizes),
            fill=fill,
            lower=lower,
        )

    return rule


def _lower_softmax(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    x, dim, half_to_float = args
    dim %= max(x.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args)  # type: ignore[no-any-return]
    kept, x = accumulated(emit, x)
    if half_to_float:
        kept = torch.float32
    largest = emit.all_reduce(emit.call(aten.amax.default, x, [dim], True), axes, "max")
    shifted = emit.call(aten.sub.Tensor, x, largest)
    raised = emit.call(aten.exp.default, shifted)
    total = emit.all_reduce(emit.call(aten.sum.dim_IntList, raised, [dim], True), axes, "sum")
    if node.target is aten._log_softmax.default:
        result = emit.call(aten.sub.Tensor, shifted, emit.call(aten.log.default, total))
    else:
        result = emit.call(aten.div.Tensor, raised, total)
    return cast(emit, result, kept)


def _lower_safe_softmax(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """A row of nothing but minus infinity gives zeros."""
    x, dim = args[:2]
    dim %= max(x.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args, **kwargs)  # type: ignore[no-any-return]
    _, x = accumulated(emit, x)
    largest = emit.all_reduce(emit.call(aten.amax.default, x, [dim], True), axes, "max")
    empty = emit.call(aten.eq.Scalar, largest, -math.inf)
    shifted = emit.call(aten.sub.Tensor, x, emit.call(aten.masked_fill.Scalar, largest, empty, 0))
    raised = emit.call(aten.exp.default, shifted)
    total = emit.all_reduce(emit.call(aten.sum.dim_IntList, raised, [dim], True), axes, "sum")
    result = emit.call(aten.div.Tensor, raised, emit.call(aten.masked_fill.Scalar, total, empty, 1))
    return cast(emit, result, node.meta["val"].dtype)


def _lower_softmax_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    grad, output, dim, dtype = args
    dim %= max(output.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args)  # type: ignore[no-any-return]
    _, grad = accumulated(emit, grad)
    _, output = accumulated(emit, output)
    if node.target is aten._log_softmax_backward_data.default:
        total = emit.all_reduce(emit.call(aten.sum.dim_IntList, grad, [dim], True), axes, "sum")
        share = emit.call(aten.mul.Tensor, emit.call(aten.exp.default, output), total)
        return cast(emit, emit.call(aten.sub.Tensor, grad, share), dtype)
    weighted = emit.call(aten.mul.Tensor, grad, output)
    total = emit.all_reduce(emit.call(aten.sum.dim_IntList, weighted, [dim], True), axes, "sum")
    share = emit.call(aten.mul.Tensor, output, total)
    return cast(emit, emit.call(aten.sub.Tensor, weighted, share), dtype)


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._softmax.default: _along(2, _lower_softmax, fill=-math.inf),
    aten._log_softmax.default: _along(2, _lower_softmax, fill=-math.inf),
    aten._safe_softmax.default: _along(2, _lower_safe_softmax, fill=-math.inf),
    aten._softmax_backward_data.default: _along(1, _lower_softmax_backward, (frozenset({0}),)),
    aten._log_softmax_backward_data.default: _along(1, _lower_softmax_backward, (frozenset({0}),)),
}
