"""The pass `recognize-causal`: a mask that is the causal one becomes the flag that says so.

While they are traced, Hugging Face models build their masks from positions, as tensors; called directly, they set the
flag. Where a mask follows from constants alone, it is computed here, once, and compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from axograph.capture.program import Program, value
from axograph.passes.rewrite import copied, drop_unused
from axograph.torch_private import graph_module

aten = torch.ops.aten

LARGEST_MASK = 2**22
"""The most elements of a mask that is computed to be compared: larger ones stay masks."""

_FLAG_AT = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 7,
}
"""Where each operator takes `is_causal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizeCausal:
    """Replace causal masks by the flag, so that no rank holds them and attention skips half of its work."""

    name: str = "recognize-causal"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program without the masks that the flag can stand for."""
        program = copied(program, "Causal")
        graph = program.graph
        constants = _Constants()
        for node in graph.nodes:
            mask = node.kwargs.get("attn_mask") if node.target in _FLAG_AT else None
            if isinstance(mask, fx.Node) and constants.is_causal(mask):
                _set_flag(node, _FLAG_AT[node.target])
        drop_unused(graph)
        graph.lint()
        return replace(program, graph_module=graph_module(graph, "Causal"))


def _set_flag(node: fx.Node, at: int) -> None:
    defaults = (None, None, None, 0.0, False)
    args = [*node.args, *defaults[len(node.args) : at + 1]]
    args[at] = True
    node.args = tuple(args)
    node.kwargs = {name: given for name, given in node.kwargs.items() if name != "attn_mask"}


class _Constants:
    """Values of nodes that follow from nothing but constants, computed when asked for."""

    def __init__(self) -> None:
        self.values: dict[fx.Node, Any] = {}

    def is_causal(self, mask: fx.Node) -> bool:
        """Whether a mask is 0 on and below the diagonal and minus infinity above, for every batch and head."""
        tensor = value(mask)
        rows, columns = tensor.shape[-2:]
        if rows != columns or not tensor.is_floating_point() or not self._is_computable(mask):
            return False
        found = self._compute(mask)
        above = torch.ones(rows, columns, dtype=torch.bool, device=found.device).triu(1)
        causal = torch.zeros(rows, columns, dtype=found.dtype, device=found.device).masked_fill(above, -math.inf)
        return bool(torch.equal(found, causal.expand_as(found)))

    def _is_computable(self, node: fx.Node) -> bool:
        waiting, seen = [node], set()
        while waiting:
            here = waiting.pop()
            if here.op != "call_function" or not isinstance(here.meta.get("val"), torch.Tensor):
                return False
            if value(here).numel() > LARGEST_MASK:
                return False
            seen.add(here)
            waiting += [argument for argument in here.all_input_nodes if argument not in seen]
        return True

    def _compute(self, node: fx.Node) -> torch.Tensor:
        if node not in self.values:
            assert callable(node.target)
            args, kwargs = fx.map_arg((node.args, node.kwargs), self._compute)
            self.values[node] = node.target(*args, **kwargs)
        found: torch.Tensor = self.values[node]
        return found
