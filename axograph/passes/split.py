"""The pass `split`: the joint graph becomes a forward and a backward graph, with what one saves for the other.

What backward needs is saved as it is, with two exceptions that are made again: views, which cost nothing, and what
follows from parameters alone (a gathered weight is gathered again, so that only its shard lives in between), unless the
cost model holds it for less than its gathering costs. Buffers are saved too: another call may change them in between.

So that little lives in between, what backward makes again is made where it is first used, and a gradient is brought to
where it is stored as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import fx

from axograph.capture.program import Input, Output, Program, facts, value
from axograph.cost_model.protocol import CostModel
from axograph.grid import Grid
from axograph.passes.sharding.arguments import is_pick
from axograph.torch_private import graph_module

aten = torch.ops.aten

_VIEWS = {aten.permute.default, aten.expand.default, aten.slice.Tensor, aten.select.int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Divide a joint program into the two halves that autograd runs."""

    grid: Grid | None = None
    cost_model: CostModel | None = None
    """Says what it costs to gather a weight again and to hold it gathered; without it all are gathered again."""
    name: str = "split"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The forward program, with the backward one in `backward`; that is None where nothing takes gradients."""
        pairs = list(zip(program.results(), program.outputs, strict=True))
        ahead = [(result, declared) for result, declared in pairs if declared.kind != "gradient"]
        behind = [(result, declared) for result, declared in pairs if declared.kind == "gradient"]
        if not behind:
            return _half(program, ahead, (), "Forward")
        forward = with_picks(ancestors(result for result, _ in ahead))
        saved = self._saved(program, forward, [result for result, _ in behind])
        kept = [*ahead, *((node, Output(kind="saved", target=i)) for i, node in enumerate(saved))]
        first = _half(program, kept, (), "Forward")
        return replace(first, backward=_half(program, behind, saved, "Backward", late=forward))

    def _saved(self, program: Program, forward: set[fx.Node], gradients: Sequence[fx.Node | None]) -> list[fx.Node]:
        """The values of the forward graph that backward is given, in the order of the graph."""
        again = from_parameters(program)
        declared = zip(program.placeholders(), program.inputs, strict=True)
        buffers = {node for node, about in declared if about.kind == "buffer"}
        found: set[fx.Node] = set()
        seen: set[fx.Node] = set()
        waiting = [node for node in gradients if node is not None]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op == "placeholder":
                if node in buffers:
                    found.add(node)
                continue
            whole = isinstance(node.meta.get("val"), torch.Tensor)
            if node in forward and whole and not is_view(node) and (node not in again or self._kept(node, again)):
                found.add(node)
            else:
                waiting += node.all_input_nodes
        return [node for node in program.graph.nodes if node in found]

    def _kept(self, node: fx.Node, again: set[fx.Node]) -> bool:
        """Whether what follows from parameters is cheaper to hold until backward than to communicate again."""
        if self.cost_model is None or self.grid is None:
            return False
        moved = [facts(part).collective for part in ancestors([node]) if part in again]
        again_s = sum(self.cost_model.collective_s(part, self.grid) for part in moved if part is not None)
        return again_s > self.cost_model.hold_s(value(node).numel() * value(node).element_size())


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
    """Whether a node moves no data. A reshape moves some where the strides do not allow a view."""
    if node.target is aten.contiguous.default:
        return value(node.all_input_nodes[0]).is_contiguous()
    if node.target is not aten.reshape.default:
        return node.target in _VIEWS
    source = value(node.all_input_nodes[0])
    return _has_view(tuple(source.shape), source.stride(), tuple(value(node).shape))


@cache
def _has_view(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        torch.empty_strided(shape, strides, device="meta").view(wanted)
    except RuntimeError:
        return False
    return True


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


def _half(
    program: Program,
    results: list[tuple[fx.Node | None, Output]],
    saved: Sequence[fx.Node],
    name: str,
    late: Collection[fx.Node] = (),
) -> Program:
    """The part of a program that makes these results, given the saved values; `late` nodes where they are used."""
    members = ancestors((node for node, _ in results), saved)
    ends = set(saved)
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    inputs: list[Input] = []
    for node, declared in zip(program.placeholders(), program.inputs, strict=True):
        if node in members and node not in ends:
            made[node] = graph.node_copy(node)
            inputs.append(declared)
    for i, node in enumerate(saved):
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
        inputs.append(Input(kind="saved", target=i))
    at_hand = _at_hand(program)
    finishing = _finishing(program, members, at_hand)

    def make(node: fx.Node) -> None:
        if node in made:
            return
        for argument in node.all_input_nodes:
            make(argument)
        if node in made:  # an argument brought it along
            return
        made[node] = graph.node_copy(node, made.__getitem__)
        for user in node.users:
            if user in finishing and node not in at_hand:
                make(user)

    for node in program.graph.nodes:
        if node.op == "call_function" and node in members and node not in late:
            make(node)
    graph.output(tuple(None if node is None else made[node] for node, _ in results))
    graph.lint()
    return replace(
        program,
        graph_module=graph_module(graph, name),
        inputs=tuple(inputs),
        outputs=tuple(declared for _, declared in results),
    )


def _at_hand(program: Program) -> set[fx.Node]:
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


def _finishing(program: Program, members: set[fx.Node], at_hand: set[fx.Node]) -> set[fx.Node]:
    """The nodes that only bring one value to where it is a result: each has one input, but for those at hand."""
    ends = {program.graph.output_node()}
    found: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        if node.op == "call_function" and node in members and node not in at_hand:
            used = all(user in found or user in ends for user in node.users if user in members or user in ends)
            if used and sum(argument not in at_hand for argument in node.all_input_nodes) == 1:
                found.add(node)
    return found
