"""The pass `split`: the joint graph becomes a forward and a backward graph, with what one saves for the other.

What backward needs is saved as it is, with two exceptions that are made again: views, which cost nothing, and what
follows from parameters alone (a gathered weight is gathered again, so that only its shard lives in between), unless the
cost model holds it for less than its gathering costs. Buffers are saved too: another call may change them in between.

So that little lives in between, what backward makes again is made where it is first used, and a gradient is brought to
where it is stored as soon as it is made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from axograph.capture.program import Input, Output, Program, facts, size_bytes
from axograph.cost_model.memory import readable
from axograph.cost_model.protocol import CostModel
from axograph.explanation import duration
from axograph.grid import Grid
from axograph.passes.dataflow import (
    ancestors,
    at_hand,
    behind,
    from_parameters,
    is_view,
    tangents_behind,
    with_picks,
)
from axograph.passes.least_remat import LeastRemat
from axograph.passes.remat import Remat, recomputed
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks
from axograph.plan import Plan
from axograph.torch_private import graph_module

_TRIES = 16
"""How often the room for what is in passing is corrected before all that blocks recompute is recomputed."""

_Results = list[tuple[fx.Node | None, Output]]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A program that is to be split."""

    program: Program
    ahead: _Results
    """What forward returns to the user."""
    after: _Results
    """The gradients."""
    forward: set[fx.Node]
    """The operators of the forward half."""
    again: set[fx.Node]
    """What follows from parameters, and is made again unless that costs more than holding it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Divide a joint program into the two halves that autograd runs."""

    grid: Grid | None = None
    cost_model: CostModel | None = None
    """Says what it costs to gather a weight again and to hold it gathered; without it all are gathered again."""
    remat: Remat = "none"
    """What backward makes again, beside the checkpointed calls of the model."""
    memory_bytes: float = math.inf
    """The most that a rank may hold during a step: what "auto" goes by."""
    name: str = "split"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The forward program, with the backward one in `backward`; that is None where nothing takes gradients."""
        pairs = list(zip(program.results(), program.outputs, strict=True))
        ahead = [(result, declared) for result, declared in pairs if declared.kind != "gradient"]
        tangents = tangents_behind(program)
        after = [
            (result, replace(declared, through=tangents.get(result, frozenset())))
            for result, declared in pairs
            if declared.kind == "gradient"
        ]
        if not after:
            return _half(program, ahead, (), "Forward")
        forward = with_picks(ancestors(result for result, _ in ahead))
        again = from_parameters(program)
        whole = _Whole(program, ahead, after, forward, again)
        if self.remat == "auto" and program.plan is not None and program.plan.remat == "block":
            return self._least(whole, program.plan)
        return self._halves(whole, recomputed(program.graph, forward, blocks=self.remat == "block"))

    def _halves(self, whole: _Whole, redone: set[fx.Node]) -> Program:
        """The two halves, of which the second runs these operators again where it needs what they make."""
        saved = self._saved(whole, redone)
        kept = [*whole.ahead, *((node, Output(kind="saved", target=i)) for i, node in enumerate(saved))]
        first = _half(whole.program, kept, (), "Forward")
        return replace(first, backward=_half(whole.program, whole.after, saved, "Backward", late=whole.forward))

    def _least(self, whole: _Whole, plan: Plan) -> Program:
        """The halves with the least recomputation that fits into memory.

        What is alive in passing is known of two halves only, so that room for it is made until they fit.
        """
        assert self.grid is not None
        assert self.cost_model is not None
        assert plan.memory is not None
        tasks = Tasks(whole.program, self.grid, self.cost_model)
        times_s = {node: task.time_s for node, task in tasks.of.items()}
        gradients = [result for result, _ in whole.after]
        choice = LeastRemat(whole.program.graph, whole.forward, gradients, whole.again, lambda n: times_s.get(n, 0.0))
        room = self.memory_bytes - (plan.memory.total - plan.memory.saved - plan.memory.passing)
        halves = self._halves(whole, choice.always)
        anyway = self._passing_bytes(halves)
        beside = again_s = 0.0
        saved, passing = _saved_bytes(halves), anyway
        weights = sum(size_bytes(node) for node in self._saved(whole, choice.always) if node in whole.again)
        for _ in range(_TRIES):
            if saved + passing <= room:
                return _told(halves, plan, self.memory_bytes, again_s, saved, passing)
            redone = choice.within(room - weights, anyway, beside)
            if redone is None:
                break
            halves = self._halves(whole, redone)
            saved, passing = _saved_bytes(halves), self._passing_bytes(halves)
            made = self._behind(whole, redone)[1] & redone
            again_s = choice.seconds(made)
            beside = max(beside, passing - choice.most_again_bytes(made))
        return self._halves(whole, choice.blocks)

    def _passing_bytes(self, program: Program) -> int:
        """The most that is alive at once in a half, but for what goes in and comes out."""
        assert self.grid is not None
        assert self.cost_model is not None
        most = 0
        for half in program.halves():
            lifetimes = Lifetimes(Tasks(half, self.grid, self.cost_model))
            lifetimes.size.update(dict.fromkeys((*lifetimes.inputs, *lifetimes.results), 0))
            most = max(most, lifetimes.peak(list(half.graph.nodes)))
        return most

    def _saved(self, whole: _Whole, redone: set[fx.Node]) -> list[fx.Node]:
        """The values of the forward graph that backward is given, in the order of the graph."""
        found, _ = self._behind(whole, redone)
        return [node for node in whole.program.graph.nodes if node in found]

    def _behind(self, whole: _Whole, redone: set[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
        """What backward is given, and what it makes."""
        declared = zip(whole.program.placeholders(), whole.program.inputs, strict=True)
        buffers = {node for node, about in declared if about.kind == "buffer"}

        def saves(node: fx.Node) -> bool:
            if node.op == "placeholder":
                return node in buffers
            is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
            if node not in whole.forward or node in redone or not is_tensor or is_view(node):
                return False
            return node not in whole.again or self._kept(node, whole.again)

        return behind((result for result, _ in whole.after), saves)

    def _kept(self, node: fx.Node, again: set[fx.Node]) -> bool:
        """Whether what follows from parameters is cheaper to hold until backward than to communicate again."""
        if self.cost_model is None or self.grid is None:
            return False
        moved = [facts(part).collective for part in ancestors([node]) if part in again]
        again_s = sum(self.cost_model.collective_s(part, self.grid) for part in moved if part is not None)
        return again_s > self.cost_model.hold_s(size_bytes(node))


def _told(halves: Program, plan: Plan, limit_bytes: float, again_s: float, saved: float, passing: float) -> Program:
    """The halves with a plan that says what is recomputed, and what a rank holds then."""
    assert plan.memory is not None
    assert halves.backward is not None
    note = f"backward recomputes for {duration(again_s)}, so that a step fits into {readable(limit_bytes)}"
    memory = replace(plan.memory, saved=float(saved), passing=float(passing))
    told = replace(plan, remat="auto", memory=memory, notes=(*plan.notes, note) if again_s else plan.notes)
    return replace(halves, plan=told, backward=replace(halves.backward, plan=told))


def _saved_bytes(program: Program) -> int:
    """What forward saves, but for buffers."""
    pairs = zip(program.results(), program.outputs, strict=True)
    saved = [node for node, declared in pairs if declared.kind == "saved" and node is not None]
    return sum(size_bytes(node) for node in saved if node.op != "placeholder")


def _half(
    program: Program,
    results: _Results,
    saved: Sequence[fx.Node],
    name: str,
    late: Collection[fx.Node] = (),
) -> Program:
    """The part of a program that makes these results, given the saved values; `late` nodes where they are used."""
    members = ancestors((node for node, _ in results), saved)
    graph = fx.Graph()
    made, inputs = _placeholders(program, members, saved, graph)
    ready = at_hand(program)
    finishing = _finishing(program, members, ready)

    def make(node: fx.Node) -> None:
        waiting = [node]
        while waiting:
            last = waiting[-1]
            missing = [argument for argument in last.all_input_nodes if argument not in made]
            if missing and last not in made:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if last not in made:
                made[last] = graph.node_copy(last, made.__getitem__)
                if last not in ready:
                    waiting += [user for user in reversed(last.users) if user in finishing]

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


def _placeholders(
    program: Program, members: set[fx.Node], saved: Sequence[fx.Node], graph: fx.Graph
) -> tuple[dict[fx.Node, fx.Node], list[Input]]:
    """Declare in a graph those inputs that are among the members, and the saved values."""
    made: dict[fx.Node, fx.Node] = {}
    inputs: list[Input] = []
    ends = set(saved)
    for node, declared in zip(program.placeholders(), program.inputs, strict=True):
        if node in members and node not in ends:
            made[node] = graph.node_copy(node)
            inputs.append(declared)
    for i, node in enumerate(saved):
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
        inputs.append(Input(kind="saved", target=i))
    return made, inputs


def _finishing(program: Program, members: set[fx.Node], ready: set[fx.Node]) -> set[fx.Node]:
    """The nodes that only bring one value to where it is a result: each has one input, but for those at hand."""
    ends = {program.graph.output_node()}
    found: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        if node.op == "call_function" and node in members and node not in ready:
            used = all(user in found or user in ends for user in node.users if user in members or user in ends)
            if used and sum(argument not in ready for argument in node.all_input_nodes) == 1:
                found.add(node)
    return found
