"""What follows from what in a graph: questions that several passes ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from torch import fx

from axograph.capture.program import Program, value
from axograph.passes.sharding.arguments import is_pick

aten = torch.ops.aten

_VIEWS = {
    aten.permute.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.view_as_real.default,
    aten.view_as_complex.default,
}
"""Operators that never move data."""

_VIEWS_AT_TIMES = {aten.reshape.default, aten.contiguous.default}
"""Operators that move data where strides ask for it."""


def ancestors(nodes: Iterable[fx.Node | None], stop: Sequence[fx.Node] = ()) -> set[fx.Node]:
    """These nodes and all that they are made from, not looking behind the nodes of `stop`."""
    found: set[fx.Node] = set()
    ends = set(stop)
    waiting = [node for node in nodes if node is not None]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if node not in ends:
                waiting += node.all_input_nodes
    return found


def with_picks(nodes: set[fx.Node]) -> set[fx.Node]:
    """These nodes, and all that picks one of their outputs: what an operator makes for backward is made forward."""
    return nodes | {user for node in nodes for user in node.users if is_pick(user)}


def is_view(node: fx.Node) -> bool:
    """Whether a node moves no data, as its operand lies. A reshape moves some where the strides do not allow a view."""
    if node.target is aten.contiguous.default:
        return value(node.all_input_nodes[0]).is_contiguous()
    if node.target is not aten.reshape.default:
        return node.target in _VIEWS
    source = value(node.all_input_nodes[0])
    return _has_view(tuple(source.shape), source.stride(), tuple(value(node).shape))


def may_be_view(node: fx.Node) -> bool:
    """Whether a node moves no data for some strides of its operand, whose memory it then shares."""
    return node.target in _VIEWS or node.target in _VIEWS_AT_TIMES


@cache
def _has_view(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        torch.empty_strided(shape, strides, device="meta").view(wanted)
    except RuntimeError:
        return False
    return True


def tangents_behind(program: Program) -> dict[fx.Node | None, frozenset[int]]:
    """For each node, the user outputs whose tangents it follows from."""
    declared = dict(zip(program.placeholders(), program.inputs, strict=True))
    found: dict[fx.Node | None, frozenset[int]] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and declared[node].kind == "tangent":
            found[node] = frozenset({int(declared[node].target)})
        else:
            found[node] = frozenset().union(*(found[used] for used in node.all_input_nodes))
    return found


def from_parameters(program: Program) -> set[fx.Node]:
    """The nodes that follow from parameters and this rank's coordinates alone."""
    declared = dict(zip(program.placeholders(), program.inputs, strict=True))
    alone: set[fx.Node] = set()
    with_parameter: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder" and declared[node].kind in ("parameter", "coordinate"):
            alone.add(node)
            if declared[node].kind == "parameter":
                with_parameter.add(node)
        elif node.op == "call_function" and all(argument in alone for argument in node.all_input_nodes):
            alone.add(node)
            if any(argument in with_parameter for argument in node.all_input_nodes):
                with_parameter.add(node)
    return with_parameter


def behind(nodes: Iterable[fx.Node | None], ends: Callable[[fx.Node], bool]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes at which a walk from these nodes to what they are made from ends, and those that it goes through."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    waiting = [node for node in nodes if node is not None]
    while waiting:
        node = waiting.pop()
        if node in seen or node in found:
            continue
        if ends(node):
            found.add(node)
        else:
            seen.add(node)
            waiting += node.all_input_nodes
    return found, seen


def at_hand(program: Program) -> set[fx.Node]:
    """Coordinates, and what follows from nothing else."""
    declared = dict(zip(program.placeholders(), program.inputs, strict=True))
    found: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if declared[node].kind == "coordinate":
                found.add(node)
        elif node.op == "call_function" and all(argument in found for argument in node.all_input_nodes):
            found.add(node)
    return found


def only_gradients(program: Program) -> set[fx.Node]:
    """The nodes from which nothing but gradients follows, by operators with one input: nothing waits for them."""
    results = zip(program.results(), program.outputs, strict=True)
    others = {result for result, declared in results if declared.kind != "gradient"}
    output = program.graph.output_node()
    found: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        onward = (user is output or (user in found and len(user.all_input_nodes) == 1) for user in node.users)
        if node.op == "call_function" and node not in others and all(onward):
            found.add(node)
    return found
