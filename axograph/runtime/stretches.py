"""Stretches: the nodes that compute, between one collective and the next, as graphs of their own.

Starts and waits of collectives stay where the schedule put them, in a graph that calls the stretches in between.
Operators that draw random numbers, write to their inputs or are not tensors' stay in that graph as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from axograph.passes.dataflow import may_be_view

aten = torch.ops.aten

_LIBRARY = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default}
"""What a compiler hands to the same library as torch does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive nodes of a graph that only compute."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """Values made before the stretch, in the order of their first use."""
    outputs: tuple[fx.Node, ...]
    """Values used after the stretch, in the order of the graph."""

    @staticmethod
    def of(nodes: Sequence[fx.Node]) -> Stretch:
        """The stretch of these nodes."""
        members = set(nodes)
        inputs = dict.fromkeys(a for node in nodes for a in node.all_input_nodes if a not in members)
        outputs = [node for node in nodes if any(user not in members for user in node.users)]
        return Stretch(nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(outputs))

    def graph(self) -> fx.Graph:
        """The stretch as a graph: its inputs are placeholders, its outputs are returned as a tuple."""
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        for i, node in enumerate(self.inputs):
            made[node] = graph.placeholder(f"in{i}")
        for node in self.nodes:
            made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in self.outputs))
        return graph

    def key(self) -> tuple[Any, ...]:
        """What identical stretches have in common; the layouts of their inputs are not in it."""
        number = {node: i for i, node in enumerate((*self.inputs, *self.nodes))}
        steps = tuple(
            (node.target, repr(fx.map_arg((node.args, node.kwargs), lambda n: f"%{number[n]}"))) for node in self.nodes
        )
        return steps, tuple(number[node] for node in self.outputs)


def stretches(graph: fx.Graph) -> Iterator[Stretch]:
    """The stretches of a graph that are worth a compiler: with at least two operators that it could make into one."""
    run: list[fx.Node] = []
    for node in graph.nodes:
        if _computes(node):
            run.append(node)
        elif node.op != "placeholder":
            if sum(map(_fusible, run)) >= 2:
                yield Stretch.of(run)
            run = []


def _computes(node: fx.Node) -> bool:
    """Whether a node may be compiled together with its neighbours."""
    if node.target is operator.getitem:
        return _computes(node.all_input_nodes[0])
    target: Any = node.target
    if node.op != "call_function" or not hasattr(target, "namespace"):
        return False
    return target.namespace != "_c10d_functional" and not target._schema.is_mutable and not _draws(node)


def _draws(node: fx.Node) -> bool:
    """Whether a node takes random numbers: attention does so only with dropout."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = {argument.name: value for argument, value in zip(target._schema.arguments, node.args, strict=False)}
    return bool((given | node.kwargs).get("dropout_p", 1.0) != 0.0)


def _fusible(node: fx.Node) -> bool:
    """Whether an operator has, or may have, a kernel of its own that could be part of another."""
    in_aten = getattr(node.target, "namespace", "") == "aten"
    copies = node.target is aten.contiguous.default or not may_be_view(node)
    return in_aten and copies and node.target not in _LIBRARY


def picks_beside_operators(graph: fx.Graph) -> fx.Graph:
    """A copy where each pick of one of an operator's outputs is next to it: only tensors cross a stretch's border."""
    copied = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node not in made:
            made[node] = copied.node_copy(node, made.__getitem__)
            for user in node.users:
                if user.target is operator.getitem:
                    made[user] = copied.node_copy(user, made.__getitem__)
    return copied


def call(
    graph: fx.Graph,
    stretch: Stretch,
    run: Callable[[list[Any]], Sequence[Any]],
    made: Mapping[fx.Node, fx.Node],
) -> dict[fx.Node, fx.Node]:
    """Let the graph call `run` for what the stretch computes; returns the nodes that its outputs are there.

    What `run` is given is held by its list alone, which it empties: so each value dies with its last use.
    """
    given = graph.call_function(_in_a_list, tuple(made[node] for node in stretch.inputs))
    results = graph.call_function(run, (given,))
    picks: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(stretch.outputs):
        picks[node] = graph.call_function(operator.getitem, (results, i))
        picks[node].meta = dict(node.meta)
    return picks


def _in_a_list(*values: Any) -> list[Any]:
    return list(values)
