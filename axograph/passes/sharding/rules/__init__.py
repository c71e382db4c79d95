"""One rule per operator: it serves search, propagation, lowering, printing and the rule tests.

`rule_of` finds the rule of a node. An operator without a rule runs on gathered inputs and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import kind_of, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule
from axograph.passes.sharding.rules import (
    attention,
    batches,
    channel_norms,
    complex_numbers,
    draws,
    experts,
    factories,
    indexing,
    lookups,
    matmuls,
    norms,
    pointwise,
    reductions,
    slices,
    softmax,
    views,
    windows,
)

RULES: Mapping[Any, Callable[[fx.Node], Rule]] = MappingProxyType(
    {
        **attention.RULES,
        **batches.RULES,
        **channel_norms.RULES,
        **complex_numbers.RULES,
        **draws.RULES,
        **experts.RULES,
        **factories.RULES,
        **indexing.RULES,
        **lookups.RULES,
        **matmuls.RULES,
        **norms.RULES,
        **pointwise.RULES,
        **reductions.RULES,
        **slices.RULES,
        **softmax.RULES,
        **views.RULES,
        **windows.RULES,
    }
)
"""The rule of every operator that has one by name; pointwise operators are recognised by their tag."""


def rule_of(node: fx.Node) -> Rule:
    """The rule of a node, for its shapes."""
    make = RULES.get(node.target)
    if make is not None:
        return make(node)
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return pointwise.rule(node)
    return gathered(node)


class RuleBook:
    """The rules of many nodes: those with arguments of the same kind share one."""

    def __init__(self, make: Callable[[fx.Node], Rule] = rule_of) -> None:
        self._make = make
        self._known: dict[Any, Rule] = {}

    def rule_of(self, node: fx.Node) -> Rule:
        """The rule of a node, for its shapes."""
        key = (node.target, kind_of((node.args, node.kwargs)), kind_of(node.meta["val"]))
        rule = self._known.get(key)
        if rule is None:
            rule = self._known[key] = self._make(node)
        return rule


def gathered(node: fx.Node) -> Rule:
    """The rule of an operator that has none: every input whole, every output whole."""
    sizes: dict[str, int] = {}

    def term(prefix: str, tensor: torch.Tensor) -> tuple[tuple[str, ...], ...]:
        names = []
        for dim, size in enumerate(tensor.shape):
            name = f"{prefix}{dim}"
            sizes[name] = size
            names.append((name,) if size > 1 else ())
        return tuple(names)

    inputs = tuple(term(f"i{i}_", argument.meta["val"]) for i, argument in enumerate(tensor_arguments(node)))
    outputs = tuple(None if t is None else term(f"o{i}_", t) for i, t in enumerate(output_tensors(node)))
    return Rule(inputs=inputs, outputs=outputs, sizes=sizes, whole=frozenset(sizes), known=False)


__all__ = ["RULES", "RuleBook", "gathered", "rule_of"]
