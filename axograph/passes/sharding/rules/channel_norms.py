"""Rules of batch norm and group norm.

A batch norm in training takes its statistics over the whole global batch, as one process would: where the batch or the
positions are cut, by small all-reduces. Groups of channels are independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term, parse_rule
from axograph.passes.sharding.rules.accumulation import (
    accumulated,
    cast,
    inverse_deviation,
    mean_over,
    multiply,
    subtract,
    total_over,
)

aten = torch.ops.aten


def _batch_term(tensor: torch.Tensor, like: torch.Tensor) -> Term:
    """The term of a tensor like `like`, `[batch, channels, positions...]`, or of one value for each channel."""
    names = ["d1"] if tensor.dim() == 1 < like.dim() else [f"d{d}" for d in range(tensor.dim())]
    return tuple((name,) if size > 1 else () for name, size in zip(names, tensor.shape, strict=True))


def _batch_norm(node: fx.Node) -> Rule:
    return _batch_rule(node, bool(argument(node, "training")), _lower_batch_norm)


def _batch_norm_backward(node: fx.Node) -> Rule:
    return _batch_rule(node, bool(argument(node, "train")), _lower_batch_norm_backward)


def _batch_rule(node: fx.Node, training: bool, lower: Any) -> Rule:
    """Without statistics of its own, all that is not a channel is free; gradients of parameters are then partial."""
    like: torch.Tensor = argument(node, "input").meta["val"]
    made = output_tensors(node)
    backward = node.target is aten.native_batch_norm_backward.default
    return Rule(
        inputs=tuple(_batch_term(a.meta["val"], like) for a in tensor_arguments(node)),
        outputs=tuple(None if t is None else _batch_term(t, like) for t in made),
        sizes={f"d{d}": size for d, size in enumerate(like.shape)},
        statistics={f"d{d}": 2 for d in range(like.dim()) if d != 1} if training else {},
        copied=frozenset() if backward else frozenset(range(1, len(made))),
        linear=(frozenset({0}),) if backward else (),
        lower=lower if training else None,
    )


def _batch_norm_for_inference(node: fx.Node) -> Rule:
    return _batch_rule(node, False, None)


def _over(x: fx.Node, strategy: Strategy) -> tuple[list[int], tuple[str, ...]]:
    """The dims that a batch norm takes its statistics over, and the axes that cut them."""
    dims = [d for d in range(x.meta["val"].dim()) if d != 1]
    return dims, strategy.axes(*(f"d{d}" for d in dims))


def _per_channel(emit: Any, x: fx.Node | None, like: fx.Node) -> fx.Node | None:
    """One value for each channel, lined up with the dims of `like`."""
    if x is None:
        return None
    shape = [-1 if d == 1 else 1 for d in range(like.meta["val"].dim())]
    return emit.call(aten.reshape.default, x, shape)  # type: ignore[no-any-return]


def _flat(emit: Any, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    return cast(emit, emit.call(aten.reshape.default, x, [-1]), dtype)


def _lower_batch_norm(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    x, weight, bias, *old, _, momentum, eps = args
    dims, axes = _over(x, strategy)
    if not axes:
        return emit.call(node.target, *args)
    count = math.prod(argument(node, "input").meta["val"].shape[d] for d in dims)
    kept, x = accumulated(emit, x)
    mean = mean_over(emit, x, dims, axes, count)
    centred = subtract(emit, x, mean)
    variance = mean_over(emit, multiply(emit, centred, centred), dims, axes, count)
    scale = inverse_deviation(emit, variance, eps)
    result = multiply(emit, centred, scale, _per_channel(emit, weight, x))
    if bias is not None:
        result = emit.call(aten.add.Tensor, result, _per_channel(emit, bias, x))
    types = [tensor.dtype for tensor in output_tensors(node) if tensor is not None]
    made = (cast(emit, result, kept), _flat(emit, mean, types[1]), _flat(emit, scale, types[2]))
    if not old:
        return made
    unbiased = emit.call(aten.mul.Scalar, variance, count / (count - 1))
    running = zip(old, (mean, unbiased), types[3:], strict=True)
    return (*made, *(emit.call(aten.lerp.Scalar, o, _flat(emit, new, dtype), momentum) for o, new, dtype in running))


def _lower_batch_norm_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    grad, x, weight, _, _, mean, scale, _, _, wanted = args
    dims, axes = _over(x, strategy)
    if not axes:
        return emit.call(node.target, *args)
    count = math.prod(argument(node, "input").meta["val"].shape[d] for d in dims)
    kept, grad = accumulated(emit, grad)
    _, x = accumulated(emit, x)
    scale = _per_channel(emit, scale, x)
    normal = multiply(emit, subtract(emit, x, _per_channel(emit, mean, x)), scale)  # type: ignore[arg-type]
    total = total_over(emit, grad, dims, axes)
    along = total_over(emit, multiply(emit, grad, normal), dims, axes)
    shift = emit.call(aten.div.Scalar, total, count)
    share = emit.call(aten.div.Scalar, multiply(emit, normal, along), count)
    to_input = multiply(emit, subtract(emit, grad, shift, share), scale, _per_channel(emit, weight, x))
    of_weight = kept if weight is None else weight.meta["val"].dtype
    return (
        cast(emit, to_input, kept) if wanted[0] else None,
        _flat(emit, along, of_weight) if wanted[1] else None,
        _flat(emit, total, of_weight) if wanted[2] else None,
    )


def _group_terms(node: fx.Node) -> tuple[str, list[tuple[int, ...]], dict[str, int]]:
    """The term of the input of a group norm, the shapes of all inputs, and the sizes of the factors."""
    shapes = [tuple(a.meta["val"].shape) for a in tensor_arguments(node)]
    shape, groups = argument(node, "input").meta["val"].shape, argument(node, "group")
    positions = " ".join(f"[s{i}]" for i in range(len(shape) - 2))
    return f"n (G [c]) {positions}", shapes, {"G": groups, "c": shape[1] // groups}


def _group_norm(node: fx.Node) -> Rule:
    tensor, shapes, sizes = _group_terms(node)
    parameters = ", (G [c])" * (len(shapes) - 1)
    return parse_rule(f"{tensor}{parameters} -> {tensor}, n G, n G", shapes, sizes=sizes, lower=_lower_group_norm)


def _lower_group_norm(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The operator is told its sizes: the batch, the channels, the positions and the groups."""
    *given, _, _, positions, groups, last = args
    rows, channels = given[0].meta["val"].shape[:2]
    groups //= emit.grid.extent(strategy.axes("G"))
    made: fx.Node = emit.call(node.target, *given, rows, channels, positions, groups, last)
    return made


def _group_norm_backward(node: fx.Node) -> Rule:
    tensor, shapes, sizes = _group_terms(node)
    weight = ", (G [c])" * (len(shapes) - 4)
    made = output_tensors(node)
    texts = [tensor, "(G [c])", "(G [c])"]
    results = ", ".join(text for text, t in zip(texts, made, strict=True) if t is not None)
    rule = parse_rule(f"{tensor}, {tensor}, n G, n G{weight} -> {results}", shapes, sizes=sizes)
    known = iter(rule.outputs)
    return Rule(
        inputs=rule.inputs,
        outputs=tuple(None if t is None else next(known) for t in made),
        sizes=rule.sizes,
        whole=rule.whole,
        linear=(frozenset({0}),),
        lower=_lower_group_norm,
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_for_inference,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
