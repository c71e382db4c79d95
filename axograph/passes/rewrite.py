"""Building a graph from another one: what passes share. Every node made carries its fake value and its facts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.capture.program import FACTS, Facts, Input, Program, facts, note
from axograph.passes.sharding.arguments import kind_of
from axograph.torch_private import graph_module

Visit = Callable[["Emitter", fx.Node, tuple[Any, ...], dict[str, Any]], fx.Node | None]
"""What to emit for a node, given its arguments in the new graph; None to drop it (its value must be unused)."""


class Emitter:
    """Appends nodes to a graph, working out the shape of each result."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.origin: fx.Node | None = None
        """The node of the old graph that is being rewritten; new nodes inherit its facts."""
        self._inherited: dict[fx.Node, Facts] = {}
        self._made: dict[Any, Any] = {}
        """What each different call made, as a fake value: identical layers ask again and again."""

    def placeholder(self, name: str, value: torch.Tensor, about: Facts) -> fx.Node:
        """Declare an input."""
        node = self.graph.placeholder(name)
        node.meta = {"val": value, FACTS: about}
        return node

    def call(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Emit one operator; its fake result is that of an earlier call with arguments of the same kind, if any."""
        name = op._schema.name.partition("::")[2]
        node = self.graph.create_node("call_function", op, args, kwargs, name=name)
        kind = (op, kind_of((args, kwargs)))
        if kind not in self._made:
            with torch.no_grad(), self._mode():
                self._made[kind] = op(*fx.map_arg(args, _fake), **fx.map_arg(kwargs, _fake))
        node.meta["val"] = self._made[kind]
        self._inherit(node)
        return node

    def _mode(self) -> Any:
        """The fake mode of the inputs: under it, what is made from nothing is fake as well."""
        first = next(iter(self.graph.nodes), None)
        return getattr(first.meta.get("val"), "fake_mode", nullcontext()) if first is not None else nullcontext()

    def copy(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Emit a node as it was, with all its facts and new arguments of the same shapes."""
        assert callable(node.target)
        copied = self.graph.create_node("call_function", node.target, args, kwargs, name=node.name)
        copied.meta = {"val": node.meta.get("val"), FACTS: facts(node)}
        return copied

    def _inherit(self, node: fx.Node) -> None:
        if self.origin is None:
            return
        known = self._inherited.get(self.origin)
        if known is None:
            about = replace(facts(self.origin), placements=(), collective=None, reason="", exposed=None)
            known = self._inherited[self.origin] = about
        node.meta[FACTS] = known


def _fake(node: fx.Node) -> Any:
    return node.meta["val"]


def rebuild(program: Program, visit: Visit, name: str) -> Program:
    """The program with each operator node replaced by what `visit` emits for it; unused nodes are dropped."""
    emitter = Emitter()
    made: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            made[node] = emitter.placeholder(node.name, node.meta["val"], facts(node))
        elif node.op == "call_function":
            emitter.origin = node
            args, kwargs = fx.map_arg((node.args, node.kwargs), made.__getitem__)
            result = visit(emitter, node, args, kwargs)
            if result is not None:
                made[node] = result
    _rename_forward(emitter.graph, {node.name: new.name for node, new in made.items() if isinstance(new, fx.Node)})
    results = tuple(made[node] if node is not None else None for node in program.results())
    return finish(program, emitter.graph, results, program.inputs, name)


def copied(program: Program, name: str) -> Program:
    """The program with a graph of its own, for a pass that edits in place."""
    return rebuild(program, lambda emit, node, args, kwargs: emit.copy(node, args, kwargs), name)


def _rename_forward(graph: fx.Graph, names: dict[str, str]) -> None:
    """Point backward nodes at the new names of their forward nodes."""
    for node in graph.nodes:
        forward = facts(node).forward
        if forward is not None and names.get(forward, forward) != forward:
            note(node, forward=names[forward])


def finish(
    program: Program, graph: fx.Graph, results: tuple[fx.Node | None, ...], inputs: tuple[Input, ...], name: str
) -> Program:
    """Close a graph with its results and wrap it as the next program."""
    graph.output(results)
    drop_unused(graph)
    graph.lint()
    return replace(program, graph_module=graph_module(graph, name), inputs=inputs)


def drop_unused(graph: fx.Graph) -> None:
    """Remove every operator whose result is not used; all of them are free of side effects."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
