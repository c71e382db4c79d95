"""The pass `schedule`: starts of collectives move up and their waits down, so that computing hides them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import fx

from axograph.capture.program import Program, note
from axograph.cost_model.protocol import CostModel
from axograph.cost_model.simulator import STREAM, Timeline, simulate
from axograph.grid import Grid
from axograph.passes.scheduling.axonn import axonn_order
from axograph.passes.scheduling.exposed import reasons
from axograph.passes.scheduling.lists import Lists, least_s
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.scheduling.verify import verify
from axograph.torch_private import graph_module

SLACK = 1.1
"""How many times the memory of the program as given an order may take, unless more is asked for."""

ROUNDS = 3
"""How many orders follow from each start of list scheduling, each improving the one before."""

WINDOWS = (64, 16, 6)
"""How far from the order given list scheduling may look, in tasks: tried where memory limits the orders."""

MANY = 4096
"""How many tasks are too many to try windows."""

NEAR = 1.002
"""How close to the bound an order is good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Reorder both halves of a program. Numbers stay as they are: the same operators on the same values."""

    grid: Grid
    cost_model: CostModel
    memory_bytes: float = math.inf
    """The most that a rank may hold during a step. A schedule may take what the plan leaves of it, and at most `slack`
    times what a half takes as given."""
    slack: float = SLACK
    contention: float = 1.0
    """How many times as long computing takes while a collective runs."""
    name: str = "schedule"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program with both halves in their best order found."""
        held = program.plan.memory if program.plan is not None else None
        spare_bytes = max(self.memory_bytes - held.total, 0.0) if held is not None else math.inf
        done = self.schedule(program, spare_bytes)
        return done if done.backward is None else replace(done, backward=self.schedule(done.backward, spare_bytes))

    def schedule(self, program: Program, spare_bytes: float = math.inf) -> Program:
        """One half in its best order found, which takes at most `spare_bytes` more than the order given."""
        tasks = Tasks(program, self.grid, self.cost_model)
        lifetimes = Lifetimes(tasks)
        given = lifetimes.peak(list(program.graph.nodes))
        cap_bytes = min(self.slack * given, given + spare_bytes)
        best: list[fx.Node] = list(program.graph.nodes)
        timeline = self._played(tasks, best)
        if any(task.track != STREAM for task in tasks):
            good_s = NEAR * least_s(tasks)
            for nodes in _candidates(tasks, lifetimes, given, cap_bytes):
                played = self._played(tasks, nodes)
                if played.time_s < timeline.time_s * (1 - 1e-9):
                    best, timeline = nodes, played
                if timeline.time_s <= good_s:
                    break
        graph = _in_order(best)
        verify(program.graph, graph, lifetimes, cap_bytes)
        why = reasons(tasks, best, timeline)
        for node in graph.nodes:
            if node.name in why:
                note(node, exposed=why[node.name])
        return replace(program, graph_module=graph_module(graph, "Scheduled"))

    def _played(self, tasks: Tasks, nodes: list[fx.Node]) -> Timeline:
        return simulate(tasks.steps(nodes), contention=self.contention)


def _candidates(tasks: Tasks, lifetimes: Lifetimes, given: float, cap_bytes: float) -> Iterator[list[fx.Node]]:
    """The orders to choose from: the one given, AxoNN's, and list scheduling from both ends, as far as they fit.

    `given` is the most bytes that live at once in the order given.
    """
    for nodes in (tasks.ordered(tasks), axonn_order(tasks)):
        if lifetimes.peak(nodes) <= cap_bytes:
            yield nodes
    aims = (cap_bytes, given)  # aiming lower may succeed where aiming at the cap does not
    trials = [(cap_bytes, math.inf)]
    if len(tasks) <= MANY:
        trials += [(aim, float(window)) for aim in aims for window in WINDOWS if window < len(tasks)]
    for aim_bytes, window in trials:
        lists = Lists(tasks, lifetimes, aim_bytes)
        for order in lists.orders(ROUNDS, window):
            nodes = tasks.ordered(order)
            if lifetimes.peak(nodes) <= cap_bytes:
                yield nodes
            else:
                lists.short_of_memory = True
        if not lists.short_of_memory:
            return


def _in_order(nodes: list[fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
        made[node].meta = dict(node.meta)
    return graph
