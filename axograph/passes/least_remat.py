"""The least recomputation that fits into memory: which values backward is given, and which it makes again.

An integer program, solved exactly by HiGHS. For each value two decisions: saved, and made again, which takes its
seconds once. What backward needs is one of the two; what is made again needs its operands to be one of the two. All
that is saved, and what is made again at a time (in one block, and outside of blocks), stay below a limit of bytes.
Values at the same place of identical blocks are decided alike. What leaves a block is saved, and so are the results of
collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import fx

from axograph.capture.program import facts, size_bytes, values
from axograph.passes.dataflow import behind, is_view
from axograph.passes.remat import recomputed, region
from axograph.torch_private import collective_op

PRECISION = 1e-6
"""The relative distance to the least seconds at which the solver stops."""

MOST_NODES = 20_000
"""After so many nodes of its tree the solver stops with the best that it found: on every rank alike, unlike a clock."""


@dataclass(slots=True)
class _Kind:
    """Values that are decided alike."""

    block: int | None
    """The kind of block that they lie in; None outside."""
    needed: bool
    """Whether backward itself needs them."""
    savable: bool
    redoable: bool
    size_bytes: int
    """Bytes of one of them."""
    nodes: list[fx.Node] = field(default_factory=list)
    operands: set[int] = field(default_factory=set)
    """What they are made of, seen through views."""


class LeastRemat:
    """The values of the forward half of a program on local tensors, to be saved or made again."""

    def __init__(
        self,
        graph: fx.Graph,
        forward: Collection[fx.Node],
        gradients: Iterable[fx.Node | None],
        free: Collection[fx.Node],
        time_s: Callable[[fx.Node], float],
    ) -> None:
        """`free` has what is made again by other rules: what follows from parameters."""
        self.time_s = time_s
        self.always = recomputed(graph, forward, blocks=False)
        """What the checkpointed calls of the model make again."""
        self.blocks = recomputed(graph, forward, blocks=True)
        """What may be made again in blocks."""
        self._given = {node for node in graph.nodes if node.op == "placeholder" or node in free}
        self._needed, _ = behind(gradients, lambda node: node in self._given or self._is_value(node, forward))
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        own = [node for node in graph.nodes if self._is_value(node, forward) and node not in self._given]
        self.kinds: list[_Kind] = []
        self._kind_of: dict[fx.Node, int] = {}
        self._sort(own)

    @staticmethod
    def _is_value(node: fx.Node, forward: Collection[fx.Node]) -> bool:
        return node.op == "call_function" and node in forward and not is_view(node)

    def _operands(self, node: fx.Node) -> list[fx.Node]:
        found, _ = behind(node.all_input_nodes, lambda n: n in self._given or not is_view(n))
        return sorted(found - self._given, key=self._order.__getitem__)

    def _sort(self, own: Sequence[fx.Node]) -> None:
        """Find the kinds: the same place in blocks of which all values look alike."""
        blocks: dict[Hashable, list[fx.Node]] = defaultdict(list)
        for node in own:
            inside = region(node, blocks=True)
            blocks[("outside", node) if inside is None else inside].append(node)
        alike: dict[Hashable, int] = {}
        for inside, nodes in blocks.items():
            place = {node: i for i, node in enumerate(nodes)}
            outside = isinstance(inside, tuple)
            described = tuple((self._like(node), tuple(map(place.get, self._operands(node)))) for node in nodes)
            first = alike.setdefault(nodes[0] if outside else described, len(self.kinds))
            if first == len(self.kinds):
                self.kinds += [self._kind(node, None if outside else first) for node in nodes]
            for i, node in enumerate(nodes):
                self._kind_of[node] = first + i
                self.kinds[first + i].nodes.append(node)
        for node in own:
            self.kinds[self._kind_of[node]].operands |= {self._kind_of[operand] for operand in self._operands(node)}

    def _like(self, node: fx.Node) -> Hashable:
        shapes = tuple((tuple(t.shape), t.dtype) for t in values(node))
        return (str(node.target), shapes, node in self._needed, node in self.blocks, node in self.always)

    def _kind(self, node: fx.Node, block: int | None) -> _Kind:
        several = isinstance(node.meta.get("val"), list | tuple)
        communicates = facts(node).collective is not None or node.target is collective_op("wait_tensor")
        size = 0 if several else size_bytes(node)
        return _Kind(
            block=block,
            needed=node in self._needed,
            savable=not several and node not in self.always,
            redoable=not communicates if block is None else node in self.blocks,
            size_bytes=size,
        )

    def within(self, most_bytes: float, passing_bytes: float, beside_bytes: float) -> set[fx.Node] | None:
        """What backward makes again so that it all takes so much at most; None where that is too little.

        `passing_bytes` are alive in passing anyway, `beside_bytes` at a time beside what is made again.
        """
        if most_bytes <= passing_bytes:
            return None
        from scipy.optimize import milp  # scipy takes half a second to import

        program = self._program(most_bytes, passing_bytes, beside_bytes)
        answer = milp(**program, options={"mip_rel_gap": PRECISION, "node_limit": MOST_NODES})
        if answer.x is None:
            return None
        saved = answer.x[: len(self.kinds)] > 0.5
        return {node for kind, is_saved in zip(self.kinds, saved, strict=True) if not is_saved for node in kind.nodes}

    def most_again_bytes(self, made: Collection[fx.Node]) -> int:
        """The bytes of what the block that makes most again makes again, and of what is made outside of blocks."""
        again = [kind.size_bytes if any(node in made for node in kind.nodes) else 0 for kind in self.kinds]
        return max(sum(again[i] for i in together) for together in self._at_a_time())

    def _at_a_time(self) -> list[list[int]]:
        """For each kind of block, the values that may be alive together after they were made again."""
        blocks = dict.fromkeys((None, *(kind.block for kind in self.kinds)))
        return [[i for i, kind in enumerate(self.kinds) if kind.block in (None, block)] for block in blocks]

    def seconds(self, nodes: Collection[fx.Node]) -> float:
        """What it takes to run these operators."""
        return sum(self.time_s(node) for node in nodes)

    def _program(self, most_bytes: float, passing_bytes: float, beside_bytes: float) -> dict[str, Any]:
        """Columns: saved or not for each kind, made again or not, and the most that is alive in passing."""
        from scipy.optimize import Bounds, LinearConstraint
        from scipy.sparse import lil_array

        count = len(self.kinds)
        rows: list[tuple[dict[int, float], float]] = []
        """Sums of columns that are at least so much."""
        passing = 2 * count
        for i, kind in enumerate(self.kinds):
            if kind.needed:
                rows.append(({i: 1.0, count + i: 1.0}, 1.0))
            rows += [({j: 1.0, count + j: 1.0, count + i: -1.0}, 0.0) for j in sorted(kind.operands - {i})]
        share = [kind.size_bytes / most_bytes for kind in self.kinds]
        rows.append(({passing: 1.0}, passing_bytes / most_bytes))
        for together in self._at_a_time():
            rows.append(({passing: 1.0, **{count + i: -share[i] for i in together}}, beside_bytes / most_bytes))
        saved = {i: -share[i] * len(kind.nodes) for i, kind in enumerate(self.kinds)}
        rows.append(({**saved, passing: -1.0}, -1.0))
        matrix = lil_array((len(rows), passing + 1))
        for number, (row, _) in enumerate(rows):
            for column, factor in row.items():
                matrix[number, column] = factor
        cost = np.array([0.0] * count + [self.seconds(kind.nodes) for kind in self.kinds] + [0.0])
        upper = [float(kind.savable) for kind in self.kinds] + [float(kind.redoable) for kind in self.kinds] + [1.0]
        return {
            "c": cost / (cost.max() or 1.0),
            "integrality": np.arange(passing + 1) < passing,
            "bounds": Bounds(0.0, np.array(upper)),
            "constraints": LinearConstraint(matrix.tocsr(), np.array([least for _, least in rows]), np.inf),
        }
