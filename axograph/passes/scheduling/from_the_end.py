"""List scheduling from the end of a program to its beginning.

In the manner of XLA's latency-hiding scheduler: each track takes, whenever it is free, a task whose users are all done. So a collective runs as late as it can without
being waited for, and its result is held as short as possible. A task that would lift memory above the cap is passed
over while another is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from torch import fx

from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Task, Tasks

Priority = Callable[[Task], tuple[float, ...]]
"""What is taken first of the tasks that may run: the largest."""


def longest_before(tasks: Tasks) -> list[float]:
    """For each task, the seconds of the longest chain of tasks that ends with it."""
    chain_s: list[float] = []
    for task in tasks:
        chain_s.append(task.time_s + max((chain_s[needed] for needed in task.needs), default=0.0))
    return chain_s


def communication_before(tasks: Tasks) -> list[float]:
    """For each task, the most seconds of communication on a chain of tasks that ends with it."""
    chain_s: list[float] = []
    for task in tasks:
        own_s = task.time_s if task.track != STREAM else 0.0
        chain_s.append(own_s + max((chain_s[needed] for needed in task.needs), default=0.0))
    return chain_s


class FromTheEnd:
    """List scheduling from the end, within a cap on memory."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes, cap_bytes: float) -> None:
        self.tasks = tasks
        self.lifetimes = lifetimes
        self.cap_bytes = cap_bytes

    def order(self, priority: Priority) -> list[Task]:
        """The tasks in the order in which they are to be issued."""
        tasks = self.tasks
        waiting = [len(task.users) for task in tasks]
        ready_s = [0.0] * len(tasks)
        free_s: dict[str, float] = {}
        ready: dict[str, list[tuple[tuple[float, ...], int]]] = {}
        later: list[tuple[float, int]] = []
        live = _Live(self.lifetimes)
        finish_s = [0.0] * len(tasks)

        def offer(number: int) -> None:
            heapq.heappush(later, (ready_s[number], number))

        for task in tasks:
            if not waiting[task.number]:
                offer(task.number)
        done = 0
        now_s = 0.0
        while done < len(tasks):
            while later and later[0][0] <= now_s:
                number = heapq.heappop(later)[1]
                key = tuple(-part for part in priority(tasks[number]))
                heapq.heappush(ready.setdefault(tasks[number].track, []), (key, -number))
            taken = self._take(ready, free_s, now_s, live)
            if taken is None:
                upcoming = [s for track, s in free_s.items() if s > now_s and ready.get(track)]
                now_s = min([*upcoming, *(later[:1] and [later[0][0]])])
                continue
            task = tasks[taken]
            finish_s[taken] = now_s + task.time_s
            free_s[task.track] = finish_s[taken]
            done += 1
            for needed in task.needs:
                waiting[needed] -= 1
                ready_s[needed] = max(ready_s[needed], finish_s[taken])
                if not waiting[needed]:
                    offer(needed)
        return sorted(tasks, key=lambda task: (-finish_s[task.number], task.number))

    def _take(
        self,
        ready: dict[str, list[tuple[tuple[float, ...], int]]],
        free_s: dict[str, float],
        now_s: float,
        live: _Live,
    ) -> int | None:
        """The next task of a track that is free: the first that fits; where none does, the one that adds least."""
        tightest: tuple[int, str, tuple[tuple[float, ...], int]] | None = None
        blocked = False
        for track, heap in ready.items():
            if not heap or free_s.get(track, 0.0) > now_s:
                blocked = blocked or bool(heap)
                continue
            passed = []
            while heap:
                entry = heapq.heappop(heap)
                needed = live.after(self.tasks[-entry[1]].node)
                if needed <= self.cap_bytes:
                    for other in passed:
                        heapq.heappush(heap, other)
                    live.take(self.tasks[-entry[1]].node)
                    return -entry[1]
                passed.append(entry)
                if tightest is None or needed < tightest[0]:
                    tightest = (needed, track, entry)
            for other in passed:
                heapq.heappush(heap, other)
        if tightest is None or blocked:
            return None
        _, track, entry = tightest
        ready[track].remove(entry)
        heapq.heapify(ready[track])
        live.take(self.tasks[-entry[1]].node)
        return -entry[1]


class _Live:
    """The bytes that live before the tasks taken so far, going backwards: a definition frees, a first use holds."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self.held = set(lifetimes.results)
        self.live = sum(lifetimes.size[storage] for storage in self.held)

    def after(self, node: fx.Node) -> int:
        """The bytes that live while a node runs."""
        size = self.lifetimes.size
        made = sum(size[s] for s in self.lifetimes.made[node] if s not in self.held)
        return self.live + made + sum(size[s] for s in self.lifetimes.read[node] if s not in self.held)

    def take(self, node: fx.Node) -> None:
        """Put a node before all taken so far."""
        for storage in self.lifetimes.made[node]:
            if storage in self.held:
                self.held.discard(storage)
                self.live -= self.lifetimes.size[storage]
        for storage in self.lifetimes.read[node]:
            if storage not in self.held:
                self.held.add(storage)
                self.live += self.lifetimes.size[storage]
