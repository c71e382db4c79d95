"""Rules of matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, parse_rule

aten = torch.ops.aten


def _product(text: str) -> Callable[[fx.Node], Rule]:
    def rule(node: fx.Node) -> Rule:
        shapes = [argument.meta["val"].shape for argument in tensor_arguments(node)]
        made = parse_rule(text, shapes)
        return parse_rule(text, shapes, flops=2.0 * math.prod(made.sizes.values()))

    return rule


def _convolution(node: fx.Node) -> Rule:
    """The batch is free; windows and channels are whole."""
    shapes = [argument.meta["val"].shape for argument in tensor_arguments(node)]
    window = " ".join(f"[w{i}]" for i in range(len(shapes[0]) - 2))
    kernel = " ".join(f"[k{i}]" for i in range(len(shapes[0]) - 2))
    out = " ".join(f"[v{i}]" for i in range(len(shapes[0]) - 2))
    result = node.meta["val"].shape
    bias = ", [o]" if len(shapes) == 3 else ""
    sizes = {f"v{i}": size for i, size in enumerate(result[2:])}
    text = f"b [c] {window}, [o] [g] {kernel}{bias} -> b [o] {out}"
    return parse_rule(text, shapes, sizes=sizes, flops=2.0 * math.prod(result) * math.prod(shapes[1][1:]))


def _convolution_backward(node: fx.Node) -> Rule:
    shapes = [argument.meta["val"].shape for argument in tensor_arguments(node)]
    count = len(shapes[0]) - 2
    out, window, kernel = (" ".join(f"[{name}{i}]" for i in range(count)) for name in "vwk")
    whole = {"x": f"b [c] {window}", "w": f"[o] [g] {kernel}", "b": "[o]"}
    made = output_tensors(node)
    results = ", ".join(text for text, output in zip(whole.values(), made, strict=True) if output is not None)
    rule = parse_rule(
        f"b [o] {out}, {whole['x']}, {whole['w']} -> {results}",
        shapes,
        flops=4.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:]),
        linear=(frozenset({0}),),
    )
    terms = iter(rule.outputs)
    outputs = tuple(None if output is None else next(terms) for output in made)
    return Rule(inputs=rule.inputs, outputs=outputs, sizes=rule.sizes, whole=rule.whole, flops=rule.flops)


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.mm.default: _product("m k, k n -> m n"),
    aten.bmm.default: _product("b m k, b k n -> b m n"),
    aten.mv.default: _product("m k, k -> m"),
    aten.dot.default: _product("k, k -> "),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
