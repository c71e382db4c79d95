"""The work of one rank, as cost models are asked for it."""

from __future__ import annotations

import math

from torch import fx

from axograph.capture.program import DTYPE_NAMES
from axograph.cost_model.protocol import Compute
from axograph.grid import Grid
from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy


def local_work(node: fx.Node, rule: Rule, strategy: Strategy, grid: Grid) -> Compute:
    """What one rank does for an operator in one strategy; work on padding is work."""
    tensors = [argument.meta["val"] for argument in tensor_arguments(node)]
    made = output_tensors(node)
    size = 0
    for placed, tensor in zip((*strategy.inputs, *strategy.outputs), (*tensors, *made), strict=True):
        if placed is not None and tensor is not None:
            size += placed.local_elements(grid) * tensor.element_size()
    share = math.prod(whole / -(-whole // grid.extent(axes)) for whole, axes in strategy.parts)
    dtype = next((DTYPE_NAMES.get(tensor.dtype, "f32") for tensor in made if tensor is not None), "f32")
    return Compute(op=str(node.target), flops=rule.flops / share, size_bytes=float(size), dtype=dtype)
