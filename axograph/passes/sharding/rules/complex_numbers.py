"""Rules of complex numbers (rotary tables, Fourier transforms): made of pairs of real ones, and taken apart again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.rules import pointwise, reductions

aten = torch.ops.aten


def _pairs(node: fx.Node) -> Rule:
    """`... [pair]` on the side of real numbers."""
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    from_real = node.target is aten.view_as_complex.default
    numbers = node.meta["val"] if from_real else tensor
    term = tuple((f"d{d}",) if size > 1 else () for d, size in enumerate(numbers.shape))
    sizes = {f"d{d}": size for d, size in enumerate(numbers.shape)} | {"pair": 2}
    pairs = (*term, ("pair",))
    return Rule(
        inputs=(pairs if from_real else term,),
        outputs=(term if from_real else pairs,),
        sizes=sizes,
        whole=frozenset({"pair"}),
        linear=(frozenset({0}),),
        is_view=True,
        lower=_lower_view_as_complex if from_real else None,
    )


def _lower_view_as_complex(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The two numbers of a pair must be neighbours in memory."""
    made: fx.Node = emit.call(aten.view_as_complex.default, emit.call(aten.contiguous.default, args[0]))
    return made


def _joined(node: fx.Node) -> Rule:
    """A complex number of a real and an imaginary part is linear in both."""
    return replace(pointwise.rule(node), linear=(frozenset({0, 1}),))


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.view_as_complex.default: _pairs,
    aten.view_as_real.default: _pairs,
    aten.complex.default: _joined,
    aten.polar.default: pointwise.rule,
    aten._fft_c2c.default: reductions.working_along(),
    aten._fft_c2r.default: reductions.working_along(),
    aten._fft_r2c.default: reductions.working_along(linear=True),
}
