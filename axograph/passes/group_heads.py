"""The pass `group-heads`: attention takes the heads of keys and values as they are, not repeated for each query head.

Models with grouped heads repeat keys and values before attention, and so sum their gradients after it. The fused
operator knows groups itself: the copies, and the sums, go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from axograph.capture.program import Program, value
from axograph.passes.rewrite import copied, drop_unused
from axograph.torch_private import graph_module

aten = torch.ops.aten

_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeads:
    """Undo the repetition of keys and values where nothing but attention uses the copies."""

    name: str = "group-heads"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program with fewer copies; attention that does not fit stays as it is."""
        program = copied(program, "Grouped")
        graph = program.graph
        backward = [node for node in graph.nodes if node.target is _BACKWARD]
        for node in [node for node in graph.nodes if node.target is _FORWARD]:
            _group(node, [other for other in backward if other.args[2:4] == node.args[1:3]])
        drop_unused(graph)
        graph.lint()
        return replace(program, graph_module=graph_module(graph, "Grouped"))


def _group(forward: fx.Node, backward: list[fx.Node]) -> None:
    """Rewrite one attention and its derivatives, if the copies and their gradients have no other use."""
    repeated: Any = forward.args[1:3]
    sources = [_unrepeated(copies) for copies in repeated]
    if any(
        source is None or set(copies.users) - {forward, *backward}
        for source, copies in zip(sources, repeated, strict=True)
    ):
        return
    sums = [[_summed(node, index, source) for index, source in zip((1, 2), sources, strict=True)] for node in backward]
    if any(found is None for pair in sums for found in pair):
        return
    forward.args = (forward.args[0], *sources, *forward.args[3:])
    for node, pair in zip(backward, sums, strict=True):
        node.args = (*node.args[:2], *sources, *node.args[4:])
        gradients = list(node.meta["val"])
        for found, source in zip(pair, sources, strict=True):
            assert found is not None
            assert source is not None
            pick, total = found
            pick.meta["val"] = gradients[int(pick.args[1])] = torch.empty_like(value(source))  # type: ignore[arg-type]
            total.replace_all_uses_with(pick)
        node.meta["val"] = tuple(gradients)


def _unrepeated(copies: fx.Node) -> fx.Node | None:
    """The [b, k, s, e] tensor whose heads were each repeated, in place, to make this [b, k * g, s, e] one."""
    expanded = copies.args[0] if copies.target is aten.reshape.default else None
    spread = expanded.args[0] if isinstance(expanded, fx.Node) and expanded.target is aten.expand.default else None
    source = spread.args[0] if isinstance(spread, fx.Node) and spread.target is aten.reshape.default else None
    if not isinstance(source, fx.Node) or value(source).dim() != 4:
        return None
    batch, heads, *rest = value(source).shape
    groups = value(copies).shape[1] // heads
    fits = list(value(expanded).shape) == [batch, heads, groups, *rest]  # type: ignore[arg-type]
    return source if fits and list(value(spread).shape) == [batch, heads, 1, *rest] else None  # type: ignore[arg-type]


def _summed(node: fx.Node, index: int, source: fx.Node | None) -> tuple[fx.Node, fx.Node] | None:
    """The gradient of the copies, as picked from the derivative, and the node that is its sum over each group."""
    picks = [user for user in node.users if user.args[1] == index]
    if len(picks) != 1 or source is None:
        return None
    step = picks[0]
    for op in (aten.reshape.default, aten.sum.dim_IntList, aten.reshape.default):
        users = list(step.users)
        if len(users) != 1 or users[0].target is not op:
            return None
        step = users[0]
        if op is aten.sum.dim_IntList and list(step.args[1]) != [2]:  # type: ignore[arg-type]
            return None
    return (picks[0], step) if value(step).shape == value(source).shape else None
