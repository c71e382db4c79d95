"""The bytes that live while a graph runs in some order: each value from the operator that makes it to its last use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from torch import fx

from axograph.capture.program import Program, size_bytes
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.sharding.arguments import is_pick
from axograph.torch_private import collective_op


class Lifetimes:
    """Which storage each node reads and makes, and how large it is.

    Views, and picks of one result of several, share the storage of what they look at. The result of a collective has
    its storage from the start on; what is sent is held until the wait.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.made: dict[fx.Node, tuple[fx.Node, ...]] = {}
        """The storages that a node makes, by the node that stands for each."""
        self.read: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self.size: dict[fx.Node, int] = {}
        self.inputs: set[fx.Node] = set()
        home: dict[fx.Node, tuple[fx.Node, ...]] = {}
        wait = collective_op("wait_tensor")
        for node in tasks.graph.nodes:
            read = [storage for argument in node.all_input_nodes for storage in home[argument]]
            if node.target is wait and isinstance(node.args[0], fx.Node):
                read += self.read[node.args[0]]
            self.read[node] = tuple(dict.fromkeys(read))
            shares = node.target is wait or is_pick(node) or (node.op == "call_function" and node not in tasks.of)
            if shares and read:
                home[node] = home[node.args[0]] if isinstance(node.args[0], fx.Node) else tuple(read)
                self.made[node] = ()
            else:
                home[node] = self.made[node] = () if node.op == "output" else (node,)
                self.size[node] = size_bytes(node)
                if node.op == "placeholder":
                    self.inputs.add(node)
        self.results = frozenset(self.read[tasks.graph.output_node()])

    def peak(self, nodes: Sequence[fx.Node]) -> int:
        """The most bytes that live at once; inputs live until their last use, results to the end."""
        uses = Counter(storage for node in nodes for storage in self.read[node])
        keep = self.results
        live = sum(self.size[node] for node in self.inputs if uses[node] or node in keep)
        most = live
        for node in nodes:
            if node in self.inputs:
                continue
            live += sum(self.size[storage] for storage in self.made[node])
            most = max(most, live)
            for storage in self.made[node]:
                if not uses[storage]:
                    live -= self.size[storage]
            for storage in self.read[node]:
                uses[storage] -= 1
                if not uses[storage] and storage not in keep:
                    live -= self.size[storage]
        return most


def room_bytes(program: Program, memory_bytes: float) -> float:
    """What the plan of a program leaves of so much memory; without a plan nothing is short."""
    held = program.plan.memory if program.plan is not None else None
    return max(memory_bytes - held.total, 0.0) if held is not None else math.inf
