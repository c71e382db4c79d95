"""Rules of operators that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Term

aten = torch.ops.aten

_LINEAR_IN_BOTH = {aten.add.Tensor, aten.sub.Tensor}
_LINEAR_IN_EACH = {aten.mul.Tensor}
_LINEAR_IN_FIRST = {
    aten.neg.default,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten.div.Tensor,
    aten.tanh_backward.default,
    aten.sigmoid_backward.default,
    aten.silu_backward.default,
    aten.gelu_backward.default,
    aten.threshold_backward.default,
}


def rule(node: fx.Node) -> Rule:
    """Dims aligned from the right; a dim of size 1 is broadcast."""
    arguments = [argument.meta["val"] for argument in tensor_arguments(node)]
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
    )


def _linear(node: fx.Node, arguments: list[torch.Tensor]) -> tuple[frozenset[int], ...]:
    if not arguments or not all(argument.is_floating_point() for argument in arguments[:2]):
        return ()
    if node.target in _LINEAR_IN_BOTH:
        return (frozenset({0, 1}),) if len(arguments) == 2 and arguments[0].shape == arguments[1].shape else ()
    if node.target in _LINEAR_IN_EACH:
        return tuple(frozenset({i}) for i in range(len(arguments)))
    if node.target in _LINEAR_IN_FIRST:
        return (frozenset({0}),)
    return ()


def _cast(node: fx.Node) -> Rule:
    """A cast of a partial sum is exact only where it widens."""
    made = rule(node)
    (argument,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    widens = argument.is_floating_point() and torch.promote_types(argument.dtype, result.dtype) == result.dtype
    linear = (frozenset({0}),) if widens else ()
    return Rule(inputs=made.inputs, outputs=made.outputs, sizes=made.sizes, linear=linear)


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._to_copy.default: _cast,
    aten.copy.default: rule,
    aten.tanh_backward.default: rule,
    aten.sigmoid_backward.default: rule,
    aten.silu_backward.default: rule,
    aten.gelu_backward.default: rule,
    aten.threshold_backward.default: rule,
    aten.where.self: rule,
}
