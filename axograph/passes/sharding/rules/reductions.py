"""Rules of reductions over dims, and of operators that work along one dim and leave the others alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def _names(tensor: torch.Tensor) -> list[tuple[str, ...]]:
    return [(f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape)]


def _sizes(tensor: torch.Tensor) -> dict[str, int]:
    return {f"d{dim}": size for dim, size in enumerate(tensor.shape)}


def _dims(node: fx.Node, name: str = "dim") -> list[int]:
    """The dims that the argument of this name selects; all of them where it selects none."""
    rank = tensor_arguments(node)[0].meta["val"].dim()
    given = argument(node, name)
    if given is None or given == []:
        return list(range(rank))
    return sorted({dim % rank for dim in ([given] if isinstance(given, int) else given)}) if rank else []


def _reduction(node: fx.Node) -> Rule:
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    dims = _dims(node)
    keep = node.meta["val"].dim() == tensor.dim()
    names = _names(tensor)
    out: Term = tuple(() if d in dims else name for d, name in enumerate(names) if keep or d not in dims)
    linear = (frozenset({0}),) if tensor.is_floating_point() else ()
    return Rule(inputs=(tuple(names),), outputs=(out,), sizes=_sizes(tensor), linear=linear)


def _mean(node: fx.Node) -> Rule:
    made = _reduction(node)
    return replace(made, paddable=frozenset(made.sizes), lower=_lower_mean)


def _lower_mean(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The mean is the sum of the means of equal parts, divided by their number; padding, zeros, adds nothing."""
    mean: fx.Node = emit.call(node.target, *args, **kwargs)
    dims, whole, part = _dims(node), tensor_arguments(node)[0].meta["val"].shape, args[0].meta["val"].shape
    parts = Fraction(math.prod(whole[d] for d in dims), math.prod(part[d] for d in dims))
    return mean if parts == 1 else emit.call(aten.div.Scalar, mean, float(parts))


def _along(node: fx.Node) -> list[str]:
    """The factors that a reduction sums up."""
    return [f"d{dim}" for dim in _dims(node)]


def _maximum(node: fx.Node) -> Rule:
    made = _reduction(node)
    exact = None if node.meta["val"].is_floating_point() else frozenset(made.sizes) - set(_along(node))
    return replace(made, linear=(), reduction="max", fill=-math.inf, paddable=exact)


def _minimum(node: fx.Node) -> Rule:
    return replace(_reduction(node), linear=(), whole=frozenset(_along(node)))


def _log_sum(node: fx.Node) -> Rule:
    made = _reduction(node)
    along = dict.fromkeys(_along(node), 2)
    return replace(
        made, linear=(), statistics=along, paddable=frozenset(made.sizes), fill=-math.inf, lower=_lower_log_sum
    )


def _lower_log_sum(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The largest of the parts' results, and the logarithm of the sum of what they are relative to it."""
    local: fx.Node = emit.call(node.target, *args, **kwargs)
    axes = strategy.axes(*_along(node))
    if not axes:
        return local
    largest = emit.all_reduce(local, axes, "max")
    largest = emit.call(aten.masked_fill.Scalar, largest, emit.call(aten.eq.Scalar, largest, -math.inf), 0)
    total = emit.all_reduce(emit.call(aten.exp.default, emit.call(aten.sub.Tensor, local, largest)), axes, "sum")
    return emit.call(aten.add.Tensor, largest, emit.call(aten.log.default, total))  # type: ignore[no-any-return]


def _norm(node: fx.Node) -> Rule:
    made = replace(_reduction(node), linear=())
    if argument(node, "ord") <= 0:
        return replace(made, whole=frozenset(_along(node)))
    along = dict.fromkeys(_along(node), 1)
    return replace(made, statistics=along, paddable=frozenset(made.sizes), lower=_lower_norm)


def _lower_norm(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The norm of the norms of the parts."""
    local: fx.Node = emit.call(node.target, *args, **kwargs)
    axes, order = strategy.axes(*_along(node)), argument(node, "ord")
    if not axes or math.isinf(order):
        return emit.all_reduce(local, axes, "max")  # type: ignore[no-any-return]
    total = emit.all_reduce(emit.call(aten.pow.Tensor_Scalar, local, order), axes, "sum")
    return emit.call(aten.pow.Tensor_Scalar, total, 1 / order)  # type: ignore[no-any-return]


def working_along(name: str = "dim", linear: bool = False) -> Callable[[fx.Node], Rule]:
    """An operator along the dims in the argument of this name: they are whole, the others free."""

    def rule(node: fx.Node) -> Rule:
        tensor: torch.Tensor = tensor_arguments(node)[0].meta["val"]
        dims = _dims(node, name)
        sizes = _sizes(tensor)

        def term(output: torch.Tensor) -> Term:
            kept = range(tensor.dim())
            if output.dim() != tensor.dim():
                return tuple(name for d, name in enumerate(_names(tensor)) if d not in dims)
            sizes.update({f"o{d}": output.shape[d] for d in dims})
            named = (f"o{d}" if d in dims else f"d{d}" for d in kept)
            return tuple((name,) if sizes[name] > 1 else () for name in named)

        outputs = tuple(None if output is None else term(output) for output in output_tensors(node))
        return Rule(
            inputs=(tuple(_names(tensor)),),
            outputs=outputs,
            sizes=sizes,
            whole=frozenset(f"{letter}{d}" for letter in "do" for d in dims),
            linear=(frozenset({0}),) if linear and tensor.is_floating_point() else (),
        )

    return rule


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.sum.dim_IntList: _reduction,
    aten.mean.dim: _mean,
    aten.amax.default: _maximum,
    aten.amin.default: _minimum,
    aten.logsumexp.default: _log_sum,
    aten.linalg_vector_norm.default: _norm,
    aten.cumsum.default: working_along(linear=True),
    aten.flip.default: working_along("dims", linear=True),
    aten.roll.default: working_along("dims", linear=True),
    **{
        op: working_along()
        for op in (
            aten.cumprod.default,
            aten.cummax.default,
            aten.cummin.default,
            aten.logcumsumexp.default,
            aten.argmax.default,
            aten.argmin.default,
            aten.max.dim,
            aten.min.dim,
            aten.median.dim,
            aten.mode.default,
            aten.kthvalue.default,
            aten.sort.default,
            aten.sort.stable,
            aten.topk.default,
            aten.any.default,
            aten.any.dim,
            aten.any.dims,
            aten.all.default,
            aten.all.dim,
            aten.all.dims,
            aten.prod.default,
            aten.prod.dim_int,
            aten.var.correction,
            aten.std.correction,
            aten.var_mean.correction,
        )
    },
}
