"""Rules of softmax and layer norm: over a cut dim, two small all-reduces of what is summed up along it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def _dims(tensor: torch.Tensor) -> Term:
    return tuple((f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))


def _along(count: int, lower: Any, linear: tuple[frozenset[int], ...] = ()) -> Callable[[fx.Node], Rule]:
    """All tensors have one shape; the dim in the argument after them needs `count` statistics where it is cut."""

    def rule(node: fx.Node) -> Rule:
        arguments = tensor_arguments(node)
        tensor: torch.Tensor = arguments[0].meta["val"]
        dim = int(node.args[len(arguments)]) % max(tensor.dim(), 1)  # type: ignore[arg-type]
        return Rule(
            inputs=tuple(_dims(tensor) for _ in arguments),
            outputs=(_dims(tensor),),
            sizes={f"d{d}": size for d, size in enumerate(tensor.shape)},
            statistics={f"d{dim}": count},
            linear=linear,
            lower=lower,
        )

    return rule


def _lower_softmax(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    x, dim, half_to_float = args
    dim %= max(x.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args)  # type: ignore[no-any-return]
    kept, x = _accumulated(emit, x)
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
    return _cast(emit, result, kept)


def _lower_softmax_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    grad, output, dim, dtype = args
    dim %= max(output.meta["val"].dim(), 1)
    axes = strategy.axes(f"d{dim}")
    if not axes:
        return emit.call(node.target, *args)  # type: ignore[no-any-return]
    _, grad = _accumulated(emit, grad)
    _, output = _accumulated(emit, output)
    if node.target is aten._log_softmax_backward_data.default:
        total = emit.all_reduce(emit.call(aten.sum.dim_IntList, grad, [dim], True), axes, "sum")
        share = emit.call(aten.mul.Tensor, emit.call(aten.exp.default, output), total)
        return _cast(emit, emit.call(aten.sub.Tensor, grad, share), dtype)
    weighted = emit.call(aten.mul.Tensor, grad, output)
    total = emit.all_reduce(emit.call(aten.sum.dim_IntList, weighted, [dim], True), axes, "sum")
    share = emit.call(aten.mul.Tensor, output, total)
    return _cast(emit, emit.call(aten.sub.Tensor, weighted, share), dtype)


def _accumulated(emit: Any, x: fx.Node) -> tuple[torch.dtype, fx.Node]:
    """The type of x, and x in the type that sums of it are taken in, as the fused kernels do."""
    dtype: torch.dtype = x.meta["val"].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return dtype, _cast(emit, x, wide)


def _cast(emit: Any, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    if x.meta["val"].dtype == dtype:
        return x
    return emit.call(aten._to_copy.default, x, dtype=dtype)  # type: ignore[no-any-return]


def _layer_norm(node: fx.Node) -> Rule:
    """Outputs: the normalised tensor, and for each row its mean and the reciprocal of its deviation."""
    tensor: torch.Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    last = len(node.args[1])  # type: ignore[arg-type]
    rows = _dims(tensor)[: tensor.dim() - last]
    features = _dims(tensor)[tensor.dim() - last :]
    statistic: Term = (*rows, *(() for _ in features))
    parameters = len(tensor_arguments(node)) - 1
    return Rule(
        inputs=(_dims(tensor), *(features for _ in range(parameters))),
        outputs=(_dims(tensor), statistic, statistic),
        sizes={f"d{d}": size for d, size in enumerate(tensor.shape)},
        statistics={name: 2 for dim in features for name in dim},
        lower=_lower_layer_norm,
    )


def _lower_layer_norm(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    x, shape, weight, bias, eps = args
    dims = list(range(x.meta["val"].dim() - len(shape), x.meta["val"].dim()))
    axes = strategy.axes(*(f"d{d}" for d in dims))
    local = [x.meta["val"].shape[d] for d in dims]
    if not axes:
        return emit.call(node.target, x, local, weight, bias, eps)
    count = math.prod(shape)
    kept, x = _accumulated(emit, x)
    mean = _mean_over(emit, x, dims, axes, count)
    centred = emit.call(aten.sub.Tensor, x, mean)
    variance = _mean_over(emit, emit.call(aten.mul.Tensor, centred, centred), dims, axes, count)
    scale = emit.call(aten.rsqrt.default, emit.call(aten.add.Tensor, variance, eps))
    result = emit.call(aten.mul.Tensor, centred, scale)
    if weight is not None:
        result = emit.call(aten.mul.Tensor, result, weight)
    if bias is not None:
        result = emit.call(aten.add.Tensor, result, bias)
    return (_cast(emit, result, kept), mean, scale)


def _mean_over(emit: Any, x: fx.Node, dims: list[int], axes: tuple[str, ...], count: int) -> fx.Node:
    total = emit.all_reduce(emit.call(aten.sum.dim_IntList, x, dims, True), axes, "sum")
    return emit.call(aten.div.Scalar, total, count)  # type: ignore[no-any-return]


def _layer_norm_backward(node: fx.Node) -> Rule:
    """Gradients of the input, the weight and the bias; those of the parameters are summed over the rows."""
    grad: torch.Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
    last = len(node.args[2])  # type: ignore[arg-type]
    rows, features = _dims(grad)[: grad.dim() - last], _dims(grad)[grad.dim() - last :]
    statistic: Term = (*rows, *(() for _ in features))
    parameters = len(tensor_arguments(node)) - 4
    results = [_dims(grad), features, features]
    outputs = tuple(r if t is not None else None for r, t in zip(results, output_tensors(node), strict=True))
    return Rule(
        inputs=(_dims(grad), _dims(grad), statistic, statistic, *(features for _ in range(parameters))),
        outputs=outputs,
        sizes={f"d{d}": size for d, size in enumerate(grad.shape)},
        statistics={name: 2 for dim in features for name in dim},
        lower=_lower_layer_norm_backward,
    )


def _lower_layer_norm_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> Any:
    grad, x, shape, mean, scale, weight, bias, wanted = args
    rank = x.meta["val"].dim()
    dims = list(range(rank - len(shape), rank))
    axes = strategy.axes(*(f"d{d}" for d in dims))
    if not axes:
        local = [x.meta["val"].shape[d] for d in dims]
        return emit.call(node.target, grad, x, local, mean, scale, weight, bias, wanted)
    count = math.prod(shape)
    kept, grad = _accumulated(emit, grad)
    _, x = _accumulated(emit, x)
    normal = emit.call(aten.mul.Tensor, emit.call(aten.sub.Tensor, x, mean), scale)
    weighted = grad if weight is None else emit.call(aten.mul.Tensor, grad, weight)
    shift = _mean_over(emit, weighted, dims, axes, count)
    along = _mean_over(emit, emit.call(aten.mul.Tensor, weighted, normal), dims, axes, count)
    inner = emit.call(aten.sub.Tensor, weighted, shift)
    inner = emit.call(aten.sub.Tensor, inner, emit.call(aten.mul.Tensor, normal, along))
    to_input = _cast(emit, emit.call(aten.mul.Tensor, inner, scale), kept)
    rows = list(range(rank - len(shape)))
    scaled = emit.call(aten.mul.Tensor, grad, normal)
    to_weight = _cast(emit, _summed(emit, scaled, rows), kept) if wanted[1] else None
    to_bias = _cast(emit, _summed(emit, grad, rows), kept) if wanted[2] else None
    return (to_input if wanted[0] else None, to_weight, to_bias)


def _summed(emit: Any, x: fx.Node, dims: list[int]) -> fx.Node:
    if not dims:
        return x
    return emit.call(aten.sum.dim_IntList, x, dims, False)  # type: ignore[no-any-return]


def _batch_norm(node: fx.Node) -> Rule:
    """Batch norm: its statistics are over all rows and positions, so only channels may be cut."""
    arguments = tensor_arguments(node)
    tensor: torch.Tensor = arguments[0].meta["val"]
    channel: Term = (("d1",) if tensor.shape[1] > 1 else (),)
    outputs: list[Term | None] = []
    for output in output_tensors(node):
        if output is None:
            outputs.append(None)
        elif output.dim() == tensor.dim():
            outputs.append(_dims(tensor))
        else:
            outputs.append(channel if output.numel() else ((),))
    sizes = {f"d{d}": size for d, size in enumerate(tensor.shape)}
    return Rule(
        inputs=(_dims(tensor), *(channel for _ in arguments[1:])),
        outputs=tuple(outputs),
        sizes=sizes,
        whole=frozenset(name for name in sizes if name != "d1"),
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._softmax.default: _along(2, _lower_softmax),
    aten._log_softmax.default: _along(2, _lower_softmax),
    aten._softmax_backward_data.default: _along(1, _lower_softmax_backward, (frozenset({0}),)),
    aten._log_softmax_backward_data.default: _along(1, _lower_softmax_backward, (frozenset({0}),)),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
}
