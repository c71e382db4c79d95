"""Rules of operators that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Term

aten = torch.ops.aten

_LINEAR_IN_BOTH = {aten.add.Tensor, aten.sub.Tensor}
_LINEAR_IN_EACH = {aten.mul.Tensor}
_DERIVATIVES = {
    aten.elu_backward.default,
    aten.gelu_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.leaky_relu_backward.default,
    aten.log_sigmoid_backward.default,
    aten.mish_backward.default,
    aten.sigmoid_backward.default,
    aten.silu_backward.default,
    aten.softplus_backward.default,
    aten.tanh_backward.default,
    aten.threshold_backward.default,
    aten._prelu_kernel_backward.default,
}
"""Operators that are linear in the gradient that they take first."""

_DIVISIONS = {aten.div.Tensor_mode, aten.floor_divide.default, aten.fmod.Tensor, aten.remainder.Tensor}

_LINEAR_IN_FIRST = {aten.neg.default, aten.mul.Scalar, aten.div.Scalar, aten.div.Tensor, *_DERIVATIVES}


def rule(node: fx.Node) -> Rule:
    """Dims aligned from the right; a dim of size 1 is broadcast."""
    arguments = [a.meta["val"] for a in tensor_arguments(node)]
    outputs = output_tensors(node)
    result = next(output for output in outputs if output is not None)
    rank = result.dim()
    sizes = {f"d{dim}": size for dim, size in enumerate(result.shape)}

    def term(tensor: torch.Tensor) -> Term:
        first = rank - tensor.dim()
        return tuple((f"d{first + dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))

    return Rule(
        inputs=tuple(term(argument) for argument in arguments),
        outputs=tuple(None if output is None else term(output) for output in outputs),
        sizes=sizes,
        linear=_linear(node, arguments),
        paddable=frozenset() if _divides_integers(node, result) else None,
        copied=frozenset(i for i, output in enumerate(outputs) if output is not None and output.numel() == 0),
    )


def _divides_integers(node: fx.Node, result: torch.Tensor) -> bool:
    """Whether an integer is divided, which a zero in padding would stop."""
    return node.target in _DIVISIONS and not result.is_floating_point() and len(tensor_arguments(node)) == 2


def _linear(node: fx.Node, arguments: list[torch.Tensor]) -> tuple[frozenset[int], ...]:
    if not arguments or not all(argument.is_floating_point() for argument in arguments[:2]):
        return ()
    if node.target in _LINEAR_IN_BOTH:
        return (frozenset({0, 1}),) if len(arguments) == 2 else ()
    if node.target in _LINEAR_IN_EACH:
        return tuple(frozenset({i}) for i in range(len(arguments)))
    if node.target in _LINEAR_IN_FIRST:
        return (frozenset({0}),)
    return ()


def _cast(node: fx.Node) -> Rule:
    """A cast of a partial sum is exact only where it widens."""
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    widens = tensor.is_floating_point() and torch.promote_types(tensor.dtype, result.dtype) == result.dtype
    return replace(rule(node), linear=(frozenset({0}),) if widens else ())


def _where(node: fx.Node) -> Rule:
    """A choice between two partial sums is one."""
    chosen = [a.meta["val"] for a in tensor_arguments(node)[1:]]
    floating = all(tensor.is_floating_point() for tensor in chosen)
    return replace(rule(node), linear=(frozenset({1, 2}),) if floating else ())


def _masked_fill(node: fx.Node) -> Rule:
    """Zeros may be put into a partial sum."""
    tensor = tensor_arguments(node)[0].meta["val"]
    zero = argument(node, "value") == 0 and tensor.is_floating_point()
    return replace(rule(node), linear=(frozenset({0}),) if zero else ())


def _gated(node: fx.Node) -> Rule:
    """A gated unit multiplies the halves of a dim: `(half d) -> d`; its derivative, `d, (half d) -> (half d)`."""
    arguments = [a.meta["val"] for a in tensor_arguments(node)]
    both: torch.Tensor = arguments[-1]
    dim = int(argument(node, "dim")) % both.dim()
    sizes = {f"d{d}": size for d, size in enumerate(both.shape)} | {"half": 2, f"d{dim}": both.shape[dim] // 2}
    half = tuple((name,) if sizes[name] > 1 else () for name in (f"d{d}" for d in range(both.dim())))
    whole = tuple(("half", *name) if d == dim else name for d, name in enumerate(half))
    backward = len(arguments) > 1
    return Rule(
        inputs=(half, whole) if backward else (whole,),
        outputs=(whole,) if backward else (half,),
        sizes=sizes,
        whole=frozenset({"half"}),
        linear=(frozenset({0}),) if backward else (),
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._to_copy.default: _cast,
    aten.where.self: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.glu.default: _gated,
    aten.glu_backward.default: _gated,
    **dict.fromkeys(_DERIVATIVES, rule),
    **{
        op: rule
        for op in (
            aten._prelu_kernel.default,
            aten.floor_divide.default,
            aten.hardswish.default,
            aten.log_sigmoid_forward.default,
            aten.masked_fill.Tensor,
            aten.rsub.Tensor,
        )
    },
}
"""Pointwise operators that torch does not tag as such, and those of which more is known."""
