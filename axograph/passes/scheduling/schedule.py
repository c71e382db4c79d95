"""The pass `schedule`: starts of collectives move up and their waits down, so that computing hides them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import fx

from axograph.capture.program import Program, note
from axograph.cost_model.protocol import CostModel
from axograph.cost_model.simulator import STREAM, Timeline, simulate
from axograph.grid import Grid
from axograph.passes.scheduling.axonn import axonn_order
from axograph.passes.scheduling.estimate import order_s
from axograph.passes.scheduling.exposed import reasons
from axograph.passes.scheduling.lists import Lists, least_s
from axograph.passes.scheduling.memory import Lifetimes, room_bytes
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.scheduling.verify import verify
from axograph.torch_private import graph_module

SLACK = 1.1
"""How many times the memory of the program as given an order may take, unless more is asked for."""

ROUNDS = 3
"""How many orders follow from each start of list scheduling, each improving the one before."""

WINDOWS = (16, 6, 64)
"""How far from the order given list scheduling may look, in tasks: tried where memory limits the orders."""

AIM = 0.9
"""Aiming at this part of the memory there is may succeed where aiming at all of it does not."""

JUST_BELOW = 0.98
"""An order takes a little more than list scheduling counted: starts are issued before what runs meanwhile."""

WORK = 100_000
"""How many tasks list scheduling places in a half, all orders together; with many tasks fewer orders are tried."""

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
        spare_bytes = room_bytes(program, self.memory_bytes)
        done = self.schedule(program, spare_bytes)
        return done if done.backward is None else replace(done, backward=self.schedule(done.backward, spare_bytes))

    def schedule(self, program: Program, spare_bytes: float = math.inf) -> Program:
        """One half in its best order found, which takes at most `spare_bytes` more than the order given."""
        tasks = Tasks(program, self.grid, self.cost_model)
        lifetimes = Lifetimes(tasks)
        given = lifetimes.peak(list(program.graph.nodes))
        cap_bytes = min(self.slack * given, given + spare_bytes)
        search = _Search(tasks, lifetimes, cap_bytes, self.contention)
        if any(task.track != STREAM for task in tasks):
            search.run()
        best, timeline = search.best, search.timeline
        graph = _in_order(best)
        verify(program.graph, graph, lifetimes, cap_bytes)
        why = reasons(tasks, best, timeline)
        for node in graph.nodes:
            if node.name in why:
                note(node, exposed=why[node.name])
        return replace(program, graph_module=graph_module(graph, "Scheduled"))


class _Search:
    """The shortest of the orders that fit: the one given, AxoNN's, and those of list scheduling."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes, cap_bytes: float, contention: float) -> None:
        self.tasks = tasks
        self.lifetimes = lifetimes
        self.cap_bytes = cap_bytes
        self.contention = contention
        self.best = list(tasks.graph.nodes)
        self.timeline = self._played(self.best)
        self.work = 0
        """How many tasks list scheduling has placed."""

    def run(self) -> None:
        """Try orders until one is good enough."""
        self._offer(self.tasks.ordered(self.tasks))
        self._offer(axonn_order(self.tasks))
        good_s = NEAR * least_s(self.tasks)
        trials = [(self.cap_bytes, math.inf), (JUST_BELOW * self.cap_bytes, math.inf)]
        aims = (self.cap_bytes, AIM * self.cap_bytes)
        trials += [(aim, float(window)) for aim in aims for window in WINDOWS if window < len(self.tasks)]
        rounds = ROUNDS if len(self.tasks) * len(trials) < WORK / 10 else 2
        for aim_bytes, window in trials:
            lists = Lists(self.tasks, self.lifetimes, aim_bytes)
            fitted = True
            for order in lists.orders(rounds, window):
                if self.timeline.time_s <= good_s or self.work > WORK:
                    return
                self.work += len(order)
                if order_s(order, self.contention) < self.timeline.time_s * (1 - 1e-9):
                    fitted &= self._offer(self.tasks.ordered(order))
            if fitted and not lists.short_of_memory:
                return

    def _offer(self, nodes: list[fx.Node]) -> bool:
        """Take an order if it fits and is shorter than the best so far; whether it fits."""
        if self.lifetimes.peak(nodes) > self.cap_bytes:
            return False
        played = self._played(nodes)
        if played.time_s < self.timeline.time_s * (1 - 1e-9):
            self.best, self.timeline = nodes, played
        return True

    def _played(self, nodes: list[fx.Node]) -> Timeline:
        return simulate(self.tasks.steps(nodes), contention=self.contention)


def _in_order(nodes: list[fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
        made[node].meta = dict(node.meta)
    return graph
