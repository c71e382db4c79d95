"""Rules of operators that make a tensor from nothing: each rank makes its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.rule import Rule, Strategy

aten = torch.ops.aten


def _constant(node: fx.Node) -> Rule:
    """Every element is the same, so any part of it is its own size of the same."""
    shape = node.meta["val"].shape
    names = tuple((f"d{dim}",) if size > 1 else () for dim, size in enumerate(shape))
    sizes = {f"d{dim}": size for dim, size in enumerate(shape)}
    return Rule(inputs=(), outputs=(names,), sizes=sizes, paddable=frozenset(sizes), lower=_lower_constant)


def _lower_constant(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    placement = strategy.outputs[0]
    assert placement is not None
    made: fx.Node = emit.call(node.target, list(placement.local_shape(emit.grid)), *args[1:], **kwargs)
    return made


def _positions(node: fx.Node) -> Rule:
    """Positions are cheap: every rank makes all of them, and slices what it needs."""
    made = _constant(node)
    return replace(made, whole=frozenset(made.sizes), lower=None)


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.full.default: _constant,
    aten.arange.default: _positions,
    aten.arange.start: _positions,
    aten.arange.start_step: _positions,
    aten.eye.default: _positions,
    aten.eye.m: _positions,
    aten.linspace.default: _positions,
}
