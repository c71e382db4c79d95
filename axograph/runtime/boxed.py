"""Graphs as functions that take their inputs in one list and empty it, so that each value dies with its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

aten = torch.ops.aten

Boxed = Callable[[list[Any]], Sequence[Any]]


class _BoxedCode(CodeGen):
    """Generates `def forward(self, inputs)`, which unpacks the list and then lets go of it."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        names = [name for name in free_vars if name != "self"]
        unpack = f"    {', '.join(names)}, = inputs\n" if names else ""
        return f"def {self._func_name}(self, inputs){maybe_return_annotation}:\n{unpack}    inputs.clear()"


def boxed(graph: fx.Graph) -> Boxed:
    """A function that runs a copy of the graph."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    _write_in_place(copied)
    copied.set_codegen(_BoxedCode())
    run: Boxed = fx.GraphModule(torch.nn.Module(), copied).forward
    return run


_IN_PLACE = {aten.scatter.src: aten.scatter_.src, aten.scatter.value: aten.scatter_.value}


def _write_in_place(graph: fx.Graph) -> None:
    """Let a scatter into a tensor that was filled for it alone write there, instead of into a copy."""
    for node in graph.nodes:
        replacement = _IN_PLACE.get(node.target)
        if replacement is not None and node.args[0].target is aten.full.default and len(node.args[0].users) == 1:
            node.target = replacement
