"""List scheduling of tasks, from the beginning of a program or from its end, within a cap on memory.

Each track takes, whenever it is free, the most urgent task that nothing holds up any more. From the end (as XLA's
latency-hiding scheduler goes) a collective runs as late as it can without being waited for, and its result is held as
short as possible; from the beginning, what nothing waits for yet (the gradients of weights) fills the gaps. A task that
would lift memory above the cap is passed over while another is there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import fx

from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Task, Tasks


def longest_chains_s(tasks: Tasks, *, forward: bool, communication: bool = False) -> list[float]:
    """For each task, the seconds of the longest chain of tasks that it begins (`forward`) or ends.

    With `communication`, only the seconds of collectives count.
    """
    chain_s = [0.0] * len(tasks)
    for task in reversed(tasks) if forward else tasks:
        own_s = 0.0 if communication and task.track == STREAM else task.time_s
        onward = task.users if forward else task.needs
        chain_s[task.number] = own_s + max((chain_s[other] for other in onward), default=0.0)
    return chain_s


class Live(Protocol):
    """The bytes that live as tasks are taken one after the other."""

    def during(self, node: fx.Node) -> int:
        """The bytes that live while a node runs, were it taken next."""
        ...

    def take(self, node: fx.Node) -> None:
        """Take a node."""
        ...


class _Forward:
    """From the beginning: a definition holds, the last use frees."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes) -> None:
        self.size = lifetimes.size
        self.made, self.read = lifetimes.made, lifetimes.read
        self.keep = lifetimes.results
        self.uses = Counter(storage for task in tasks for storage in set(self.read[task.node]))
        self.live = sum(self.size[s] for s in lifetimes.inputs if self.uses[s] or s in self.keep)

    def during(self, node: fx.Node) -> int:
        return self.live + sum(self.size[storage] for storage in self.made[node])

    def take(self, node: fx.Node) -> None:
        self.live += sum(self.size[s] for s in self.made[node] if self.uses[s] or s in self.keep)
        for storage in set(self.read[node]):
            self.uses[storage] -= 1
            if not self.uses[storage] and storage not in self.keep:
                self.live -= self.size[storage]


class _Backward:
    """From the end: a definition frees, the first use met holds."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.size = lifetimes.size
        self.made, self.read = lifetimes.made, lifetimes.read
        self.held = set(lifetimes.results)
        self.live = sum(self.size[storage] for storage in self.held)

    def during(self, node: fx.Node) -> int:
        fresh = {*self.made[node], *self.read[node]} - self.held
        return self.live + sum(self.size[storage] for storage in fresh)

    def take(self, node: fx.Node) -> None:
        for storage in self.made[node]:
            if storage in self.held:
                self.held.discard(storage)
                self.live -= self.size[storage]
        for storage in self.read[node]:
            if storage not in self.held:
                self.held.add(storage)
                self.live += self.size[storage]


_Entry = tuple[float, int]
"""How urgent a task is, negative, and where it stands."""


class Lists:
    """Orders of the tasks of one graph by list scheduling, within a cap on memory."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes, cap_bytes: float) -> None:
        self.tasks = tasks
        self.lifetimes = lifetimes
        self.cap_bytes = cap_bytes

    def order(self, urgency: Sequence[float], *, forward: bool) -> list[Task]:
        """The tasks in the order in which they are to be issued; the larger the urgency, the sooner it is placed.

        `forward` tells from which end tasks are placed.
        """
        return _Run(self, urgency, forward).order()

    def orders(self, rounds: int) -> Iterator[list[Task]]:
        """Orders worth comparing: by the most communication to come, from either end.

        Each is improved by turns from both ends, what ended last being placed first, then what began first ("double
        justification", Valls, Ballestin and Quintanilla, European Journal of Operational Research 165, 2005).
        """
        for start in (True, False):
            forward = start
            urgency = longest_chains_s(self.tasks, forward=forward, communication=True)
            for _ in range(rounds):
                run = _Run(self, urgency, forward)
                yield run.order()
                urgency = run.next_urgency()
                forward = not forward


class _Run:
    """The placing of all tasks from one end."""

    def __init__(self, lists: Lists, urgency: Sequence[float], forward: bool) -> None:
        self.tasks, self.forward = lists.tasks, forward
        self.cap_bytes = lists.cap_bytes
        self.urgency = urgency
        lifetimes = lists.lifetimes
        self.live: Live = _Forward(self.tasks, lifetimes) if self.forward else _Backward(lifetimes)
        self.now_s = 0.0
        self.free_s: dict[str, float] = {}
        self.ready: dict[str, list[_Entry]] = {}
        """The tasks that nothing holds up, by track; heaps."""
        self.later: list[tuple[float, int]] = []
        """Tasks that are released at a time to come; a heap."""
        self.placed_s = [0.0] * len(self.tasks)
        """When each task is met, from the end that the run began at."""
        self._run()

    def order(self) -> list[Task]:
        """The tasks in the order of the program."""
        if self.forward:
            return sorted(self.tasks, key=lambda task: (self.placed_s[task.number], task.number))
        return sorted(self.tasks, key=lambda task: (-self.placed_s[task.number] - task.time_s, task.number))

    def next_urgency(self) -> list[float]:
        """For a run from the other end: what this one ended last comes first."""
        return [self.placed_s[task.number] + task.time_s for task in self.tasks]

    def _run(self) -> None:
        held_up = [len(task.needs if self.forward else task.users) for task in self.tasks]
        release_s = [0.0] * len(self.tasks)
        for task in self.tasks:
            if not held_up[task.number]:
                heapq.heappush(self.later, (0.0, task.number))
        for _ in self.tasks:
            task = self._next()
            end_s = self.now_s + task.time_s
            self.placed_s[task.number] = self.now_s
            self.free_s[task.track] = end_s
            self.live.take(task.node)
            for other in task.users if self.forward else task.needs:
                held_up[other] -= 1
                release_s[other] = max(release_s[other], end_s)
                if not held_up[other]:
                    heapq.heappush(self.later, (release_s[other], other))

    def _next(self) -> Task:
        """The next task that a track can take; time goes on until there is one."""
        while True:
            while self.later and self.later[0][0] <= self.now_s:
                task = self.tasks[heapq.heappop(self.later)[1]]
                place = task.number if self.forward else -task.number
                heapq.heappush(self.ready.setdefault(task.track, []), (-self.urgency[task.number], place))
            taken = self._taken()
            if taken is not None:
                return taken
            ends = [end_s for end_s in self.free_s.values() if end_s > self.now_s]
            self.now_s = min([*ends, *(release_s for release_s, _ in self.later[:1])])

    def _taken(self) -> Task | None:
        """The most urgent task of a track that is free and that fits; if none ever will, the one that adds least."""
        passed: list[tuple[int, str, _Entry]] = []
        for track, heap in self.ready.items():
            if self.free_s.get(track, 0.0) > self.now_s:
                continue
            skipped: list[_Entry] = []
            found = None
            while heap and found is None and len(skipped) < _LOOK:
                entry = heapq.heappop(heap)
                bytes_ = self.live.during(self.tasks[abs(entry[1])].node)
                if bytes_ <= self.cap_bytes:
                    found = entry
                else:
                    skipped.append(entry)
                    passed.append((bytes_, track, entry))
            for entry in skipped:
                heapq.heappush(heap, entry)
            if found is not None:
                return self.tasks[abs(found[1])]
        if not passed or any(end_s > self.now_s for end_s in self.free_s.values()) or self.later:
            return None
        _, track, entry = min(passed)
        self.ready[track].remove(entry)
        heapq.heapify(self.ready[track])
        return self.tasks[abs(entry[1])]


_LOOK = 32
"""How many tasks that do not fit are passed over at a time."""
