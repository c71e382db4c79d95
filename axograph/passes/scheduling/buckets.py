"""The pass `bucket`: small collectives of one kind, one group and one type of element become one.

Each collective pays the latency of its links, and one that carries several pays it once. But what it carries has to be
laid side by side, and it leaves only when the last of it is there. So buckets are made of neighbours in time, as those
of DDP are (Li et al., VLDB 2020, arXiv 2006.15704, section 3.2.3), several sizes of them are tried, and the half that
takes the least time under the cost model is kept; it may be the one given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from torch import fx

from axograph.capture.program import Program, facts, value
from axograph.cost_model.protocol import Collective, CostModel
from axograph.grid import Grid
from axograph.passes.dataflow import is_view
from axograph.passes.scheduling.bucketed import Bucket, laid_s, moved, taken_s, with_buckets
from axograph.passes.scheduling.estimate import half_s
from axograph.passes.scheduling.lists import least_s
from axograph.passes.scheduling.memory import Lifetimes, room_bytes
from axograph.passes.scheduling.merging import merged
from axograph.passes.scheduling.tasks import Task, Tasks
from axograph.torch_private import collective_op

LATENCIES = (1.0, 4.0, 16.0, 64.0)
"""A bucket is full once its bytes take so many times its latency: the sizes tried."""

WORTH = 1e-3
"""The part of a half that latencies must make up before buckets are tried."""

SLACK = 1.01
"""How many times the memory of the half as given one with buckets may take, unless more is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCollectives:
    """Merge collectives in both halves of a split program where that shortens the step under the cost model."""

    grid: Grid
    cost_model: CostModel
    memory_bytes: float = math.inf
    """The most that a rank may hold during a step."""
    contention: float = 1.0
    """How many times as long computing takes while a collective runs."""
    slack: float = SLACK
    name: str = "bucket"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program with fewer and larger collectives in both halves."""
        spare_bytes = room_bytes(program, self.memory_bytes)
        done = self.bucket(program, spare_bytes)
        return done if done.backward is None else replace(done, backward=self.bucket(done.backward, spare_bytes))

    def bucket(self, program: Program, spare_bytes: float = math.inf) -> Program:
        """One half in the shortest of its forms that take no more than `slack` times the memory of the one given."""
        tasks = Tasks(program, self.grid, self.cost_model)
        groups = [group for group in _groups(program, tasks) if len(group) > 1]
        saved_s = sum((len(group) - 1) * _latency_s(tasks, group[0]) for group in groups)
        if saved_s <= WORTH * least_s(tasks):
            return program
        late, alone = {tasks[number].node for number in tasks.of_weights}, _returned(program)
        given_s = half_s(tasks, self.contention)
        found: list[tuple[float, list[Bucket]]] = []
        for latencies in LATENCIES:
            buckets = list(_buckets(tasks, groups, latencies))
            if all(buckets != others for _, others in found):
                found.append((half_s(with_buckets(tasks, buckets), self.contention), buckets))
        for candidate_s, buckets in sorted(found, key=itemgetter(0)):
            if buckets and candidate_s < given_s * (1 - 1e-9):
                nodes = [tuple(task.node for task in bucket) for bucket in buckets]
                candidate = merged(program, nodes, late=late, alone=alone)
                given, after = _peak(tasks), _peak(Tasks(candidate, self.grid, self.cost_model))
                if after <= min(self.slack * given, given + spare_bytes):
                    return candidate
        return program


def _peak(tasks: Tasks) -> int:
    """The most bytes that live at once in the order given."""
    return Lifetimes(tasks).peak(list(tasks.graph.nodes))


def _groups(program: Program, tasks: Tasks) -> list[list[Task]]:
    """The collectives that are of one kind, group and type of element, in the order of the graph."""
    returned = _returned(program)
    found: dict[object, list[Task]] = defaultdict(list)
    for task in tasks:
        about = facts(task.node).collective
        if about is not None and _may_travel(about, task.node in returned):
            sent = value(task.node.all_input_nodes[0])
            found[task.node.target, sent.dtype, sent.device, task.node.args[1:]].append(task)
    return list(found.values())


def _may_travel(moved: Collective, returned: bool) -> bool:
    """What comes in a bucket is a view that keeps the whole bucket, but for what is gathered: that is copied."""
    return moved.kind == "all_gather" or (moved.kind != "all_to_all" and not returned)


def _returned(program: Program) -> set[fx.Node]:
    """What the half returns or saves, seen through views, but for gradients."""
    found: set[fx.Node] = set()
    for node, declared in zip(program.results(), program.outputs, strict=True):
        if node is not None and declared.kind != "gradient":
            while is_view(node) or node.target is collective_op("wait_tensor"):
                node = node.all_input_nodes[0]
            found.add(node)
    return found


def _latency_s(tasks: Tasks, task: Task) -> float:
    """What a collective of this group takes for no bytes at all."""
    return tasks.model.collective_s(replace(moved(task), size_bytes=0.0), tasks.grid)


def _buckets(tasks: Tasks, groups: Sequence[Sequence[Task]], latencies: float) -> Iterator[Bucket]:
    """Neighbours of each group, as many as fill a bucket, where that makes no circle and saves more than it costs."""
    places = _Places(tasks)
    for group in groups:
        latency_s = _latency_s(tasks, group[0])
        for members in _filled(group, places, latency_s, latencies):
            if len(members) < 2:
                continue
            copies_s = laid_s(tasks, members) + sum(taken_s(tasks, task) for task in members)
            if (len(members) - 1) * latency_s > copies_s:
                places.merge(members)
                yield tuple(members)


def _filled(group: Sequence[Task], places: _Places, latency_s: float, latencies: float) -> Iterator[list[Task]]:
    members: list[Task] = []
    before, after, filled_s = -1.0, math.inf, 0.0
    for task in group:
        low, high = places.between(task)
        fits = max(before, low) < min(after, high) and not any(
            n == member.number for n in task.needs for member in members
        )
        if members and not fits:
            yield members
            members, before, after, filled_s = [], -1.0, math.inf, 0.0
        members.append(task)
        before, after = max(before, low), min(after, high)
        filled_s += task.time_s - latency_s
        if filled_s >= latencies * latency_s:
            yield members
            members, before, after, filled_s = [], -1.0, math.inf, 0.0
    yield members


class _Places:
    """An order in which the tasks can run with the buckets made so far, and where each task stands in it.

    A bucket stands at one place. While every task stands behind what it needs, no bucket waits for itself.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.place = {number: float(at) for at, number in enumerate(_layered(tasks))}

    def between(self, task: Task) -> tuple[float, float]:
        """The places of what a task needs and of what needs it: it may stand anywhere between."""
        before = max((self.place[n] for n in task.needs), default=-1.0)
        return before, min((self.place[n] for n in task.users), default=float(len(self.tasks)))

    def merge(self, members: Sequence[Task]) -> None:
        """Put these at one place."""
        before = max(self.between(task)[0] for task in members)
        after = min(math.floor(before) + 1.0, *(self.between(task)[1] for task in members))
        self.place.update((task.number, (before + after) / 2) for task in members)


def _layered(tasks: Tasks) -> list[int]:
    """The tasks in an order in which what follows from weights stands first and what only leads to results last.

    Both by layers, so that collectives of different weights stand between what they need and what needs them.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    early = set(tasks.of_weights)
    for task in reversed(tasks):
        if task.number in early:
            early.update(task.needs)
    for task in tasks:
        if task.number in early:
            first[task.number] = 1 + max((first[n] for n in task.needs), default=0)
    for task in reversed(tasks):
        alone = len(task.needs) == 1 and task.number not in first
        if alone and all(n in last for n in task.users):
            last[task.number] = 1 + max((last[n] for n in task.users), default=0)

    def key(task: Task) -> tuple[int, int, int]:
        if task.number in first:
            return (0, first[task.number], task.number)
        return (2, -last[task.number], task.number) if task.number in last else (1, 0, task.number)

    return [task.number for task in sorted(tasks, key=key)]
