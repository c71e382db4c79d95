"""Rules of the products of a mixture of experts: rows, experts and features may be cut, as those of any product.

Over cut experts, each rank multiplies the rows of its own: the others' rows are zeros, and the sum is partial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

import axograph.passes.expert_products  # noqa: F401 - defines the operators
from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, parse_rule

aten = torch.ops.aten


def _expert_mm(node: fx.Node) -> Rule:
    return _product(node, "t k, e k n, t -> t n", {})


def _expert_outer(node: fx.Node) -> Rule:
    return _product(node, "t k, t n, t -> e k n", {"e": node.meta["val"].shape[0]})


def _product(node: fx.Node, text: str, sizes: dict[str, int]) -> Rule:
    """Each row is multiplied once, however many experts there are."""
    shapes = [argument.meta["val"].shape for argument in tensor_arguments(node)]
    linear = (frozenset({0}), frozenset({1}))
    rule = parse_rule(text, shapes, sizes=sizes, leading=frozenset({"e"}), linear=linear, lower=_lower)
    flops = 2.0 * math.prod(rule.sizes[name] for name in "tkn")
    return replace(rule, flops=flops, paddable=frozenset("tken"), positions=frozenset({2}))


def _lower(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """Experts are numbered from the rank's first; those of other ranks are then out of range, and give zeros."""
    first, second, expert, *count = args
    if strategy.axes("e"):
        table = strategy.outputs[0] if count else strategy.inputs[1]
        assert table is not None
        cut, *rest = table.dims[0]
        inner = math.prod(sub.size for sub in rest)
        offset = emit.call(aten.mul.Scalar, emit.first(cut), inner)
        expert = emit.call(aten.sub.Tensor, expert, offset)
        if not cut.is_even(emit.grid):
            outer = emit.call(aten.div.Scalar_mode, expert, inner, rounding_mode="floor")
            expert = emit.call(aten.masked_fill.Scalar, expert, emit.beyond(outer, cut), -1)
        count = [table.local_shape(emit.grid)[0]] if count else []
    return emit.call(node.target, first, second, expert, *count)  # type: ignore[no-any-return]


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    torch.ops.axograph.expert_mm.default: _expert_mm,
    torch.ops.axograph.expert_outer.default: _expert_outer,
}
