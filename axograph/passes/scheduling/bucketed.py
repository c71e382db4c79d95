"""What a half takes with buckets, told from its tasks alone: no graph is made for buckets that are only tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx

from axograph.capture.program import DTYPE_NAMES, facts, size_bytes, value
from axograph.cost_model.protocol import Collective, Compute
from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.tasks import Task, Tasks

Bucket = tuple[Task, ...]
"""Collectives of one kind, group and type of element, two or more, in the order of the graph."""


def moved(task: Task) -> Collective:
    """What a task communicates."""
    found = facts(task.node).collective
    assert found is not None
    return found


def laid_s(tasks: Tasks, members: Sequence[Task]) -> float:
    """Seconds for laying what these send side by side."""
    return _copied_s(tasks, members[0], float(sum(size_bytes(task.node.all_input_nodes[0]) for task in members)))


def taken_s(tasks: Tasks, task: Task) -> float:
    """Seconds for taking what this one brings out of a bucket: what is gathered is copied, the rest are views."""
    about = moved(task)
    return _copied_s(tasks, task, about.size_bytes) if about.kind == "all_gather" else 0.0


def _copied_s(tasks: Tasks, task: Task, size_bytes: float) -> float:
    dtype = DTYPE_NAMES.get(value(task.node).dtype, "f32")
    return tasks.model.compute_s(Compute(op="aten.cat.default", flops=0.0, size_bytes=2 * size_bytes, dtype=dtype))


def with_buckets(tasks: Tasks, buckets: Sequence[Bucket]) -> list[Task]:
    """The tasks with each bucket as one collective, and the copies that it takes, in an order as near as can be."""
    merging = _Merging(tasks)
    for bucket in buckets:
        merging.merge(bucket)
    return merging.tasks()


class _Merging:
    """A graph of tasks, by keys that tell how early each would run in the order given."""

    def __init__(self, tasks: Tasks) -> None:
        self.given = tasks
        self.key = {task.number: (float(task.number), task.number) for task in tasks}
        """What stands for each task."""
        self.made: dict[tuple[float, int], Task] = {self.key[task.number]: task for task in tasks}
        self.needs: dict[tuple[float, int], set[tuple[float, int]]] = {}
        self.sent: dict[int, tuple[float, int]] = {}
        """Under which key the members of a bucket are sent."""

    def merge(self, bucket: Bucket) -> None:
        """Replace these by one."""
        model, first = self.given.model, bucket[0]
        if any(task.number in self.given.of_weights for task in bucket):
            at = min((n for task in bucket for n in task.users), default=first.number) - 0.5
        else:
            at = max((n for task in bucket for n in task.needs), default=-1) + 0.5
        about = replace(moved(first), size_bytes=sum(moved(task).size_bytes for task in bucket))
        laid, sent = (at, first.number), (at + 0.1, first.number)
        self.made[laid] = replace(first, track=STREAM, time_s=laid_s(self.given, bucket))
        self.made[sent] = replace(first, time_s=model.collective_s(about, self.given.grid))
        self.needs[sent] = {laid}
        for task in bucket:
            del self.made[self.key[task.number]]
            self.key[task.number] = laid
        for task in bucket:
            copy_s = taken_s(self.given, task)
            self.sent[task.number] = sent
            if copy_s > 0:
                taken = (min(task.users, default=task.number) - 0.25, task.number)
                self.made[taken] = replace(task, track=STREAM, time_s=copy_s)
                self.needs[taken] = {sent}
                self.sent[task.number] = taken

    def tasks(self) -> list[Task]:
        """All tasks, numbered anew."""
        graph: nx.DiGraph[tuple[float, int]] = nx.DiGraph()
        graph.add_nodes_from(self.made)
        for key, needs in self.needs.items():
            graph.add_edges_from((need, key) for need in needs)
        for task in self.given:
            key = self.key[task.number]
            graph.add_edges_from((self.sent.get(n, self.key[n]), key) for n in task.needs)
        number = {key: at for at, key in enumerate(nx.lexicographical_topological_sort(graph))}
        return [
            replace(
                self.made[key],
                number=at,
                needs=tuple(sorted(number[need] for need in graph.predecessors(key))),
                users=sorted(number[user] for user in graph.successors(key)),
            )
            for key, at in number.items()
        ]
