"""AxoNN's three overlaps, replayed on a graph: for comparison, and as an order that a schedule must not fall behind.

Singh et al., SC24 (arXiv 2502.08145), section "Overlapping communication with computation".
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import fx

from axograph.capture.program import facts
from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.tasks import Task, Tasks

aten = torch.ops.aten

RULES = ("oar", "ors", "oag")
_PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default}


def axonn_order(tasks: Tasks, rules: tuple[str, ...] = RULES) -> list[fx.Node]:
    """The nodes of a graph in the order of these rules; other collectives are waited for where they start.

    "oar": an all-reduce starts when its input is there, and the next product runs before it is waited for. "ors": a
    reduce-scatter starts when its input is there, and is waited for at the end. "oag": the gather of a weight starts
    before the first use of the weight gathered before it.
    """
    return _Replay(tasks, rules).run()


class _Replay:
    def __init__(self, tasks: Tasks, rules: tuple[str, ...]) -> None:
        self.tasks = tasks
        self.rules = rules
        self.order: list[Task] = []
        self.begun: set[int] = set()
        self.done: set[int] = set()
        self.blocking: set[int] = set()
        self.overlapped = {task.number for task in tasks if self._rule(task) in rules}
        gathers = [task for task in tasks if self._rule(task) == "oag" and task.users]
        gathers.sort(key=lambda task: min(task.users))
        self.next_gather = {a.number: b for a, b in pairwise(gathers)} if "oag" in rules else {}

    def _rule(self, task: Task) -> str | None:
        moved = facts(task.node).collective
        if moved is None:
            return None
        if moved.kind == "all_gather":
            return "oag" if task.number in self.tasks.of_weights else None
        return {"all_reduce": "oar", "reduce_scatter": "ors"}.get(moved.kind)

    def run(self) -> list[fx.Node]:
        for task in self.tasks:
            if task.track == STREAM:
                self._compute(task)
        for task in self.tasks:
            self._issue(task)
        return self.tasks.ordered(self.order, frozenset(self.blocking))

    def _compute(self, task: Task) -> None:
        """A task that computes, after the collectives that it needs."""
        if task.number in self.begun:
            return
        self.begun.add(task.number)
        for number in task.needs:
            needed = self.tasks[number]
            if needed.track != STREAM and number not in self.done:
                self._issue(needed)
        for number in task.needs:
            following = self.next_gather.get(number)
            if following is not None:
                self._issue(following)
        if any(self._rule(self.tasks[number]) == "oar" and number in self.overlapped for number in task.needs):
            self._hoist_product(task)
        self._append(task)

    def _issue(self, task: Task) -> None:
        """A collective and, before it, the computing and communicating that it needs."""
        if task.number in self.begun:
            return
        self.begun.add(task.number)
        for number in task.needs:
            needed = self.tasks[number]
            (self._compute if needed.track == STREAM else self._issue)(needed)
        if task.number not in self.overlapped:
            self.blocking.add(task.number)
        self._append(task)

    def _append(self, task: Task) -> None:
        if task.number in self.done:
            return
        self.order.append(task)
        self.done.add(task.number)
        self.begun.add(task.number)
        for number in task.users:  # all-reduces and reduce-scatters start when their input is there
            user = self.tasks[number]
            if number in self.overlapped and self._rule(user) != "oag" and all(n in self.done for n in user.needs):
                self._append(user)

    def _hoist_product(self, task: Task) -> None:
        """Run the next product that can run before a task that needs an all-reduce."""
        for number in range(task.number + 1, len(self.tasks)):
            other = self.tasks[number]
            ready = all(n in self.done and self.tasks[n].track == STREAM for n in other.needs)
            if other.node.target in _PRODUCTS and ready and number not in self.done:
                self._append(other)
                return
            if number > task.number + 20:
                return
