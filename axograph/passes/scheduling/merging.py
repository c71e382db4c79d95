"""Rewriting a half so that collectives of one group travel together: laid side by side, sent once, taken apart.

An all-reduce takes its tensors one after the other, as one row of numbers. An all-gather and a reduce-scatter take them
as `[ranks, part]` side by side, so that a rank's share of the whole consists of its share of each tensor.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import networkx as nx
import torch
from torch import fx

from axograph.capture.program import FACTS, Program, facts, note, value
from axograph.passes.rewrite import Emitter, finish
from axograph.passes.sharding.arguments import is_pick, kind_of, output_tensors
from axograph.torch_private import collective_op

aten = torch.ops.aten

Bucket = tuple[fx.Node, ...]
"""The starts of collectives of one kind, group and type of element, two or more, in the order of the graph."""


def merged(
    program: Program,
    buckets: Sequence[Bucket],
    *,
    late: Collection[fx.Node] = (),
    alone: Collection[fx.Node] = (),
) -> Program:
    """The half with each bucket as one collective.

    No member of a bucket may need another one, not even through other buckets. A bucket is sent when its last tensor is
    there; one that has a member among `late`, when its first result is needed. What an all-gather among `alone` brings
    is copied out of the bucket as it was.
    """
    return _Merging(program, buckets, late, alone).run()


class _Merging:
    def __init__(
        self, program: Program, buckets: Sequence[Bucket], late: Collection[fx.Node], alone: Collection[fx.Node]
    ) -> None:
        self.program = program
        self.alone = {wait for start in alone for wait in start.users}
        self.late = late
        self.unit = {start: bucket for bucket in buckets for start in bucket}
        self.emit = Emitter()
        self.made: dict[fx.Node, fx.Node] = {}
        self.parts: dict[fx.Node, fx.Node] = {}
        """For each wait of a member, its part of what the bucket brought, as a row; it takes its shape where used."""

    def run(self) -> Program:
        for node in self.program.placeholders():
            self.made[node] = self.emit.placeholder(node.name, node.meta["val"], facts(node))
        for unit in self._ordered():
            if unit[0] in self.unit:
                self._send(unit)
            elif unit[0] not in self.parts:
                self._copy(unit[0])
        results = tuple(self._new(node) if node is not None else None for node in self.program.results())
        return finish(self.program, self.emit.graph, results, self.program.inputs, "Bucketed")

    def _ordered(self) -> list[tuple[fx.Node, ...]]:
        """The operators, and each bucket as one, in an order as near to that of the graph as can be."""
        position = {node: at for at, node in enumerate(self.program.graph.nodes)}
        needs: nx.DiGraph[tuple[fx.Node, ...]] = nx.DiGraph()
        for node in position:
            if node.op == "call_function":
                unit = self.unit.get(node, (node,))
                needs.add_node(unit)
                needs.add_edges_from(
                    (self.unit.get(a, (a,)), unit) for a in node.all_input_nodes if a.op == "call_function"
                )

        def place(unit: tuple[fx.Node, ...]) -> float:
            if unit[0] not in self.unit:
                return position[unit[0]]
            if any(start in self.late for start in unit):
                uses = (position[user] for start in unit for wait in start.users for user in wait.users)
                return min(uses) - 0.5
            return max(position[argument] for start in unit for argument in start.all_input_nodes) + 0.5

        return list(nx.lexicographical_topological_sort(needs, place))

    def _new(self, node: fx.Node) -> fx.Node:
        """The value of a node in the new graph."""
        if node not in self.made:
            self.emit.origin = node
            self.made[node] = self._shaped(self.parts[node], list(value(node).shape))
        return self.made[node]

    def _copy(self, node: fx.Node) -> None:
        """The node as it was; what it makes is worked out anew where an argument lies in memory in another way."""
        self.emit.origin = node
        first = node.args[0] if node.args else None
        part = self.parts.get(first) if isinstance(first, fx.Node) else None
        if part is not None and node.target is aten.reshape.default and first not in self.alone:
            copied = self._shaped(part, list(value(node).shape))
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), self._new)
            same = all(kind_of(old) == kind_of(self.made[old]) for old in node.all_input_nodes)
            again = not same and not is_pick(node)
            copied = self.emit.call(node.target, *args, **kwargs) if again else self.emit.copy(node, args, kwargs)
            if is_pick(node):
                (source,) = copied.all_input_nodes
                copied.meta["val"] = output_tensors(source)[cast("int", node.args[1])]
        copied.meta[FACTS] = facts(node)
        self.made[node] = copied

    def _send(self, bucket: Bucket) -> None:
        """One collective, and each member's part of its result."""
        emit, call = self.emit, self.emit.call
        sent = [self._new(start.all_input_nodes[0]) for start in bucket]
        emit.origin = bucket[0]
        about = [moved for start in bucket if (moved := facts(start).collective) is not None]
        kind, rest = about[0].kind, bucket[0].args[1:]
        gathers, scatters = kind == "all_gather", kind == "reduce_scatter"
        ranks = [cast("int", rest[0])] if gathers else [cast("int", rest[1])] if scatters else []
        dim = 1 if scatters else 0
        flat = [self._shaped(x, [*(ranks * dim), -1]) for x in sent]
        row = self._shaped(call(aten.cat.default, flat, dim), [-1])
        start = call(bucket[0].target, row, *rest)
        size_bytes = sum(moved.size_bytes for moved in about)
        path = _common([facts(start).path for start in bucket])
        note(start, collective=replace(about[0], size_bytes=size_bytes), path=path, reason=f"{len(bucket)} in one")
        whole = self._shaped(call(collective_op("wait_tensor"), start), [*(ranks * gathers), -1])
        first = 0
        for member, given in zip(bucket, flat, strict=True):
            emit.origin = member
            last = first + value(given).shape[-1]
            part = call(aten.slice.Tensor, whole, int(gathers), first, last)
            self.parts.update(dict.fromkeys(member.users, part))
            first = last

    def _shaped(self, x: fx.Node, shape: list[int]) -> fx.Node:
        given = value(x)
        rest = math.prod(size for size in shape if size != -1)
        sizes = [given.numel() // rest if size == -1 else size for size in shape]
        return x if list(given.shape) == sizes else self.emit.call(aten.reshape.default, x, sizes)


def _common(paths: Sequence[str]) -> str:
    """The innermost module that holds all of these."""
    return posixpath.commonpath([path.replace(".", "/") for path in paths]).replace("/", ".")
