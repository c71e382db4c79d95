"""The pass `recompute-pointwise`: backward makes again what a compiler fuses into its own kernels.

Run where compute is compiled, after `schedule`, whose order of collectives it keeps. Of `mul(x, add(tanh(x), 1))`
split saves every part that backward reads; a compiled forward half would write each to memory for that alone. A saved
value is made again from others that are saved anyway, or from parameters and inputs, if only pointwise operators and
views lie between, and if backward only uses it in operators that a compiler fuses with them: what a matmul reads lies
in memory in both halves, and stays saved. It may also be made from one value of its size that was not saved so far,
and small ones: a softmax from logits.

The rule is that of torch's own partitioner (`torch._functorch.partitioners`, `ban_recompute_materialized_backward`),
without its minimum cut.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from axograph.capture.program import Input, Output, Program, size_bytes, value
from axograph.passes.dataflow import ancestors, is_view
from axograph.passes.rewrite import Emitter, drop_unused
from axograph.torch_private import graph_module

aten = torch.ops.aten

_LONGEST = 32
"""Operators that one saved value may take to make again."""

_FUSED = {
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.gather.default,
    aten.native_layer_norm_backward.default,
    aten._softmax_backward_data.default,
    aten._log_softmax_backward_data.default,
}
"""Operators besides pointwise ones that compiled code computes its operands in."""


_MADE_IN_PLACE = {aten._to_copy.default, aten.full.default, aten.scalar_tensor.default}
"""What is as cheap as a pointwise operator, and not tagged as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputePointwise:
    """Save less for backward where making it again costs compiled code next to nothing."""

    name: str = "recompute-pointwise"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program with fewer saved values; the same one where there is nothing to spare."""
        if program.backward is None:
            return program
        program = _log_softmax_apart(program)
        assert program.backward is not None
        pairs = zip(program.results(), program.outputs, strict=True)
        saved = [node for node, declared in pairs if declared.kind == "saved" and node is not None]
        behind = zip(program.backward.placeholders(), program.backward.inputs, strict=True)
        placeholders = {saved[int(declared.target)]: node for node, declared in behind if declared.kind == "saved"}
        kept = _kept(program, placeholders, set(program.backward.results()))
        if kept == set(placeholders):
            return program
        ordered = [node for node in program.graph.nodes if node in kept]
        return _Halves(program=program, backward=program.backward, kept=ordered, placeholders=placeholders).rebuilt()


def _log_softmax_apart(program: Program) -> Program:
    """The program with each logarithm of a softmax made from the maximum and the sum of its row, as torch does it."""
    emit = Emitter()
    made: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node.target is aten._log_softmax.default:
            emit.origin = node
            made[node] = _log_softmax(emit, made[node.args[0]], node.args[1], value(node).dtype)
        elif node.op != "output":
            made[node] = emit.graph.node_copy(node, made.__getitem__)
    emit.graph.output(tuple(None if node is None else made[node] for node in program.results()))
    return replace(program, graph_module=graph_module(emit.graph, "Forward"))


def _log_softmax(emit: Emitter, x: fx.Node, dim: int, dtype: torch.dtype) -> fx.Node:
    wide = x if value(x).dtype == dtype else emit.call(aten._to_copy.default, x, dtype=dtype)
    shifted = emit.call(aten.sub.Tensor, wide, emit.call(aten.amax.default, wide, [dim], True))
    total = emit.call(aten.sum.dim_IntList, emit.call(aten.exp.default, shifted), [dim], True)
    return emit.call(aten.sub.Tensor, shifted, emit.call(aten.log.default, total))


def _kept(program: Program, placeholders: Mapping[fx.Node, fx.Node], gradients: set[fx.Node | None]) -> set[fx.Node]:
    """The values to save: the later ones of a chain are left out first, as they are made from the earlier ones."""
    inputs = set(_lasting(program))
    results = {n for n, declared in zip(program.results(), program.outputs, strict=True) if declared.kind != "saved"}
    kept = set(placeholders)
    for node in reversed(program.graph.nodes):
        if node not in placeholders or node.op == "placeholder" or is_view(node):
            continue
        if _only_fused(placeholders[node], gradients):
            sources = _sources(node, (kept - {node}) | inputs)
            added = sources - kept - inputs
            if sources and (not added or (_only_fused(node, results) and _stand_for(node, sources, added))):
                kept.discard(node)
                kept |= added
    return kept


def _stand_for(node: fx.Node, sources: set[fx.Node], added: set[fx.Node]) -> bool:
    """Whether values can be saved instead of one made from them: one of them as large, the others small."""
    if not all(isinstance(n.meta["val"], torch.Tensor) and n.op == "call_function" for n in added):
        return False
    large = [source for source in sources if 8 * size_bytes(source) > size_bytes(node)]
    return len(large) <= 1 and all(size_bytes(source) <= size_bytes(node) for source in large)


def _lasting(program: Program) -> dict[fx.Node, Input]:
    """The inputs that backward finds as forward did. Another call may change buffers in between."""
    declared = zip(program.placeholders(), program.inputs, strict=True)
    return {node: about for node, about in declared if about.kind != "buffer"}


def _only_fused(node: fx.Node, results: Collection[fx.Node | None]) -> bool:
    """Whether a value is no result, and all operators that use it fuse it with theirs."""
    return node not in results and all(
        _only_fused(user, results) if is_view(user) else _pointwise(user) or user.target in _FUSED
        for user in node.users
        if user.op != "output"
    )


def _pointwise(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    random = torch.Tag.nondeterministic_seeded in tags
    return node.op == "call_function" and not random and (torch.Tag.pointwise in tags or node.target in _MADE_IN_PLACE)


def _sources(node: fx.Node, ends: set[fx.Node]) -> set[fx.Node]:
    """What a few pointwise operators and views make a value from, going back to `ends` or to what is neither; none
    where they are many."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        made = waiting.pop()
        if made in ends or not (_pointwise(made) or is_view(made)):
            found.add(made)
        elif made not in seen:
            seen.add(made)
            waiting += made.all_input_nodes
    return found if node not in found and len(seen) <= _LONGEST else set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halves:
    """Writes the two halves anew, the second making what is not kept where it first uses it."""

    program: Program
    backward: Program
    kept: Sequence[fx.Node]
    placeholders: Mapping[fx.Node, fx.Node]
    """Of each saved value, the placeholder in backward."""

    def rebuilt(self) -> Program:
        """The program with these values saved."""
        pairs = [p for p in zip(self.program.results(), self.program.outputs, strict=True) if p[1].kind != "saved"]
        pairs += [(node, Output(kind="saved", target=i)) for i, node in enumerate(self.kept)]
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self.program.graph, made)
        graph.output(tuple(None if node is None else made[node] for node, _ in pairs))
        drop_unused(graph)
        return replace(
            self.program,
            graph_module=graph_module(graph, "Forward"),
            outputs=tuple(declared for _, declared in pairs),
            backward=self._backward(),
        )

    def _backward(self) -> Program:
        graph = fx.Graph()
        inputs: list[Input] = []
        made: dict[fx.Node, fx.Node] = {}  # of nodes of either half
        wanted = self._inputs_made_from()
        for node, declared in zip(self.backward.placeholders(), self.backward.inputs, strict=True):
            if declared.kind != "saved":
                made[node] = graph.node_copy(node)
                inputs.append(declared)
                first = next(
                    (n for n, d in wanted.items() if (d.kind, d.target) == (declared.kind, declared.target)), None
                )
                if first is not None:
                    made[first] = made[node]
        for node, declared in wanted.items():
            if node not in made:
                made[node] = graph.node_copy(node)
                inputs.append(declared)
        for i, node in enumerate(self.kept):
            made[node] = graph.placeholder(node.name)
            made[node].meta = dict(node.meta)
            inputs.append(Input(kind="saved", target=i))
            if node in self.placeholders:
                made[self.placeholders[node]] = made[node]
        spared = {p: node for node, p in self.placeholders.items() if node not in made}

        def make(node: fx.Node) -> fx.Node:
            if node not in made:
                for argument in node.all_input_nodes:
                    make(spared.get(argument, argument))
                    made[argument] = made[spared.get(argument, argument)]
                made[node] = graph.node_copy(node, made.__getitem__)
            return made[node]

        for node in self.backward.graph.nodes:
            if node.op == "call_function":
                make(node)
        results = self.backward.results()
        graph.output(tuple(None if node is None else make(spared.get(node, node)) for node in results))
        graph.lint()
        return replace(self.backward, graph_module=graph_module(graph, "Backward"), inputs=tuple(inputs))

    def _inputs_made_from(self) -> dict[fx.Node, Input]:
        """The inputs of forward that the values made again are made from."""
        ends = set(self.kept)
        spared = [node for node in self.placeholders if node not in ends]
        used = ancestors(spared, self.kept) - ends
        return {node: declared for node, declared in _lasting(self.program).items() if node in used}
