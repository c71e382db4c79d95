"""Rules of layer norm and RMS norm: over cut features, small all-reduces of each row's mean and mean square."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term
from axograph.passes.sharding.rules.accumulation import (
    accumulated,
    cast,
    inverse_deviation,
    mean_over,
    multiply,
    subtract,
)

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Shape:
    """The terms of a tensor that is normalised over its last dims."""

    tensor: Term
    features: Term
    statistic: Term
    """Of what there is one for each row."""
    sizes: dict[str, int]

    @classmethod
    def of(cls, node: fx.Node) -> _Shape:
        tensor: torch.Tensor = argument(node, "input").meta["val"]
        last = len(argument(node, "normalized_shape"))
        term = tuple((f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))
        rows, features = term[: tensor.dim() - last], term[tensor.dim() - last :]
        sizes = {f"d{d}": size for d, size in enumerate(tensor.shape)}
        return cls(term, features, (*rows, *(() for _ in features)), sizes)

    def statistics(self, count: int) -> dict[str, int]:
        return {name: count for dim in self.features for name in dim}


def _norm(count: int, lower: Any) -> Callable[[fx.Node], Rule]:
    """Outputs: the normalised tensor, and its `count` statistics of each row."""

    def rule(node: fx.Node) -> Rule:
        shape = _Shape.of(node)
        parameters = len(tensor_arguments(node)) - 1
        return Rule(
            inputs=(shape.tensor, *(shape.features for _ in range(parameters))),
            outputs=(shape.tensor, *(shape.statistic for _ in range(count))),
            sizes=shape.sizes,
            statistics=shape.statistics(count),
            paddable=frozenset(shape.sizes).difference(shape.statistics(count)),
            lower=lower,
        )

    return rule


def _norm_backward(count: int, lower: Any) -> Callable[[fx.Node], Rule]:
    """Gradients of the input and of the parameters; those of the parameters are summed over the rows."""

    def rule(node: fx.Node) -> Rule:
        shape = _Shape.of(node)
        parameters = len(tensor_arguments(node)) - 2 - count
        made = output_tensors(node)
        results = [shape.tensor, *(shape.features for _ in made[1:])]
        statistics = [shape.statistic] * count
        return Rule(
            inputs=(shape.tensor, shape.tensor, *statistics, *(shape.features for _ in range(parameters))),
            outputs=tuple(r if t is not None else None for r, t in zip(results, made, strict=True)),
            sizes=shape.sizes,
            statistics=shape.statistics(count),
            linear=(frozenset({0}),),
            paddable=frozenset(shape.sizes).difference(shape.statistics(count)),
            lower=lower,
        )

    return rule


def _features(x: fx.Node, shape: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The dims of the rows, the dims of the features, and the local sizes of the features."""
    rank = x.meta["val"].dim()
    dims = list(range(rank - len(shape), rank))
    return list(range(rank - len(shape))), dims, [x.meta["val"].shape[d] for d in dims]


def _cutting(strategy: Strategy, dims: list[int]) -> tuple[str, ...]:
    return strategy.axes(*(f"d{d}" for d in dims))


def _lower_layer_norm(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    x, shape, weight, bias, eps = args
    _, dims, local = _features(x, shape)
    axes = _cutting(strategy, dims)
    if not axes:
        return emit.call(node.target, x, local, weight, bias, eps)
    count = math.prod(shape)
    kept, x = accumulated(emit, x)
    mean = mean_over(emit, x, dims, axes, count)
    centred = subtract(emit, x, mean)
    scale = inverse_deviation(emit, mean_over(emit, multiply(emit, centred, centred), dims, axes, count), eps)
    result = multiply(emit, centred, scale, weight)
    if bias is not None:
        result = emit.call(aten.add.Tensor, result, bias)
    of_rows = output_tensors(node)[1].dtype  # type: ignore[union-attr]
    return (cast(emit, result, kept), cast(emit, mean, of_rows), cast(emit, scale, of_rows))


def _lower_layer_norm_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    grad, x, shape, mean, scale, weight, bias, wanted = args
    rows, dims, local = _features(x, shape)
    axes = _cutting(strategy, dims)
    if not axes:
        return emit.call(node.target, grad, x, local, mean, scale, weight, bias, wanted)
    count = math.prod(shape)
    kept, grad = accumulated(emit, grad)
    _, x = accumulated(emit, x)
    normal = multiply(emit, subtract(emit, x, mean), scale)
    weighted = multiply(emit, grad, weight)
    shift = mean_over(emit, weighted, dims, axes, count)
    along = mean_over(emit, multiply(emit, weighted, normal), dims, axes, count)
    to_input = multiply(emit, subtract(emit, weighted, shift, multiply(emit, normal, along)), scale)
    return (
        cast(emit, to_input, kept) if wanted[0] else None,
        cast(emit, _summed(emit, multiply(emit, grad, normal), rows), kept) if wanted[1] else None,
        cast(emit, _summed(emit, grad, rows), kept) if wanted[2] else None,
    )


def _summed(emit: Any, x: fx.Node, dims: list[int]) -> fx.Node:
    if not dims:
        return x
    return emit.call(aten.sum.dim_IntList, x, dims, False)  # type: ignore[no-any-return]


def _lower_rms_norm(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    x, shape, weight, eps = args
    _, dims, local = _features(x, shape)
    axes = _cutting(strategy, dims)
    if not axes:
        return emit.call(node.target, x, local, weight, eps)
    kept, x = accumulated(emit, x)
    eps = torch.finfo(x.meta["val"].dtype).eps if eps is None else eps
    square = mean_over(emit, multiply(emit, x, x), dims, axes, math.prod(shape))
    scale = inverse_deviation(emit, square, eps)
    of_rows = output_tensors(node)[1].dtype  # type: ignore[union-attr]
    return (cast(emit, multiply(emit, x, scale, weight), kept), cast(emit, scale, of_rows))


def _lower_rms_norm_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    grad, x, shape, scale, weight, wanted = args
    rows, dims, local = _features(x, shape)
    axes = _cutting(strategy, dims)
    if not axes:
        return emit.call(node.target, grad, x, local, scale, weight, wanted)
    kept, grad = accumulated(emit, grad)
    _, x = accumulated(emit, x)
    normal = multiply(emit, x, scale)
    weighted = multiply(emit, grad, weight)
    along = mean_over(emit, multiply(emit, weighted, normal), dims, axes, math.prod(shape))
    to_input = multiply(emit, subtract(emit, weighted, multiply(emit, normal, along)), scale)
    return (
        cast(emit, to_input, kept) if wanted[0] else None,
        cast(emit, _summed(emit, multiply(emit, grad, normal), rows), kept) if wanted[1] else None,
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.native_layer_norm.default: _norm(2, _lower_layer_norm),
    aten.native_layer_norm_backward.default: _norm_backward(2, _lower_layer_norm_backward),
    aten._fused_rms_norm.default: _norm(1, _lower_rms_norm),
    aten._fused_rms_norm_backward.default: _norm_backward(1, _lower_rms_norm_backward),
}
