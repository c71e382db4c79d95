"""Rules of matrix products and convolutions: every factor may be cut but the positions under a window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, parse_rule

aten = torch.ops.aten


def _product(text: str) -> Callable[[fx.Node], Rule]:
    def rule(node: fx.Node) -> Rule:
        shapes = [argument.meta["val"].shape for argument in tensor_arguments(node)]
        made = parse_rule(text, shapes)
        return parse_rule(text, shapes, flops=2.0 * math.prod(made.sizes.values()))

    return rule


def _convolution(node: fx.Node) -> Rule:
    """Channels come in groups, `(G c)` and `(G o)`; a window slides over positions that are whole.

    Where there is a bias, every rank adds it to a finished sum, so `c` is whole.
    """
    shapes = [a.meta["val"].shape for a in tensor_arguments(node)]
    result = node.meta["val"].shape
    terms = _convolution_terms(node, whole_inputs=len(shapes) == 3)
    bias = ", (G o)" if len(shapes) == 3 else ""
    return parse_rule(
        f"{terms['input']}, {terms['weight']}{bias} -> {terms['output']}",
        shapes,
        sizes=_convolution_sizes(node, shapes[0], shapes[1], result),
        flops=2.0 * math.prod(result) * math.prod(shapes[1][2:]) * shapes[0][1] / argument(node, "groups"),
        paddable=frozenset("b"),
        lower=_lower_convolution,
    )


def _convolution_terms(node: fx.Node, whole_inputs: bool) -> dict[str, str]:
    count = len(argument(node, "stride"))
    input_, kernel, output = (" ".join(f"[{name}{i}]" for i in range(count)) for name in "wkv")
    c = "[c]" if whole_inputs else "c"
    weight = f"(G {c}) o {kernel}" if argument(node, "transposed") else f"(G o) {c} {kernel}"
    return {"input": f"b (G {c}) {input_}", "weight": weight, "output": f"b (G o) {output}"}


def _convolution_sizes(node: fx.Node, input_: torch.Size, weight: torch.Size, output: torch.Size) -> dict[str, int]:
    groups = argument(node, "groups")
    named = {f"{name}{i}": n for name, shape in zip("wkv", (input_, weight, output), strict=True)
             for i, n in enumerate(shape[2:])}  # fmt: skip
    return {"G": groups, "c": input_[1] // groups, "o": output[1] // groups, **named}


def _lower_convolution(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    groups = args[-1] // emit.grid.extent(strategy.axes("G"))
    made: fx.Node = emit.call(node.target, *args[:-1], groups)
    return made


def _convolution_backward(node: fx.Node) -> Rule:
    shapes = [a.meta["val"].shape for a in tensor_arguments(node)]
    made = output_tensors(node)
    terms = _convolution_terms(node, whole_inputs=made[2] is not None)
    results = [terms["input"], terms["weight"], "(G o)"]
    text = ", ".join(term for term, output in zip(results, made, strict=True) if output is not None)
    rule = parse_rule(
        f"{terms['output']}, {terms['input']}, {terms['weight']} -> {text}",
        shapes,
        sizes=_convolution_sizes(node, shapes[1], shapes[2], shapes[0]),
        flops=4.0 * math.prod(shapes[0]) * math.prod(shapes[2][2:]) * shapes[1][1] / argument(node, "groups"),
        linear=(frozenset({0}),),
        paddable=frozenset("b"),
        lower=_lower_convolution_backward,
    )
    known = iter(rule.outputs)
    return replace(rule, outputs=tuple(None if output is None else next(known) for output in made))


def _lower_convolution_backward(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    grad, x, weight, bias, *rest, groups, wanted = args
    local = [grad.meta["val"].shape[1]] if bias is not None else None
    groups //= emit.grid.extent(strategy.axes("G"))
    made: fx.Node = emit.call(node.target, grad, x, weight, local, *rest, groups, wanted)
    return made


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.mm.default: _product("m k, k n -> m n"),
    aten.bmm.default: _product("b m k, b k n -> b m n"),
    aten.mv.default: _product("m k, k -> m"),
    aten.dot.default: _product("k, k -> "),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
