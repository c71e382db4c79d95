"""The rule of random numbers: every dim may be cut, and each rank makes its own part of the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.capture.draws import DRAW
from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy

aten = torch.ops.aten


def _draw(node: fx.Node) -> Rule:
    shape = node.meta["val"].shape
    sizes = {f"d{dim}": size for dim, size in enumerate(shape)}
    return Rule(
        inputs=tuple(() for _ in tensor_arguments(node)),
        outputs=(tuple((f"d{dim}",) if size > 1 else () for dim, size in enumerate(shape)),),
        sizes=sizes,
        paddable=frozenset(sizes),
        lower=_lower,
    )


def _lower(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The index grows along each part of a dim as it does globally, from where this rank's part begins.

    In padding the indices are those of other elements, or of none: nobody looks there.
    """
    placement = strategy.outputs[0]
    assert placement is not None
    key, site, first, _, strides, *rest = args
    sizes, steps = [], []
    for dim, stride in zip(placement.dims, strides, strict=True):
        inside = math.prod(sub.size for sub in dim)
        for sub in dim:
            inside //= sub.size
            sizes.append(sub.local(emit.grid))
            steps.append(stride * inside)
            if any(emit.grid[axis] > 1 for axis in sub.axes):
                at = emit.call(aten.mul.Scalar, emit.first(sub), stride * inside)
                first = at if first is None else emit.call(aten.add.Tensor, first, at)
    made: fx.Node = emit.call(node.target, key, site, first, sizes, steps, *rest)
    shape = list(placement.local_shape(emit.grid))
    if shape != sizes:
        made = emit.call(aten.reshape.default, made, shape)
    return made


RULES: dict[Any, Callable[[fx.Node], Rule]] = {DRAW: _draw}
