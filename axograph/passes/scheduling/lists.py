"""List scheduling of tasks, from the beginning of a program or from its end, within a cap on memory.

Each track takes, whenever it is free, the most urgent task that nothing holds up any more. From the end (as XLA's
latency-hiding scheduler goes) a collective runs as late as it can without being waited for, and its result is held as
short as possible; from the beginning, what nothing waits for yet (the gradients of weights) fills the gaps. A task that
would lift memory above the cap is passed over while another is there.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import fx

from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Task, Tasks


def longest_chains_s(tasks: Tasks, *, forward: bool, computing: float = 1.0) -> list[float]:
    """For each task, the seconds of the longest chain of tasks that it begins (`forward`) or ends.

    Seconds of computing count `computing` times.
    """
    chain_s = [0.0] * len(tasks)
    for task in reversed(tasks) if forward else tasks:
        own_s = task.time_s * computing if task.track == STREAM else task.time_s
        onward = task.users if forward else task.needs
        chain_s[task.number] = own_s + max((chain_s[other] for other in onward), default=0.0)
    return chain_s


def least_s(tasks: Tasks) -> float:
    """No order takes less: the largest of computing, each channel, and the longest chain."""
    busy_s: dict[str, float] = defaultdict(float)
    for task in tasks:
        busy_s[task.track] += task.time_s
    return max([*busy_s.values(), *longest_chains_s(tasks, forward=True)], default=0.0)


class Live(Protocol):
    """The bytes that live as tasks are taken one after the other."""

    def during(self, task: Task) -> int:
        """The bytes that live while a task runs, were it taken next."""
        ...

    def take(self, task: Task) -> None:
        """Take a task."""
        ...


class _Forward:
    """From the beginning: a definition holds, the last use frees; the first use of a result frees what was sent."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes) -> None:
        self.tasks = tasks
        self.size = lifetimes.size
        self.made, self.read = lifetimes.made, lifetimes.read
        self.keep = lifetimes.results
        self.uses = Counter(storage for task in tasks for storage in self.read[task.node])
        self.uses.update(storage for task in tasks if task.track != STREAM for storage in self.read[task.node])
        self.waited: set[int] = set()
        self.live = sum(self.size[s] for s in lifetimes.inputs if self.uses[s] or s in self.keep)

    def during(self, task: Task) -> int:
        return self.live + sum(self.size[storage] for storage in self.made[task.node])

    def take(self, task: Task) -> None:
        self.live += sum(self.size[s] for s in self.made[task.node] if self.uses[s] or s in self.keep)
        self._free(self.read[task.node])
        for number in task.needs:
            needed = self.tasks[number]
            if needed.track != STREAM and number not in self.waited:
                self.waited.add(number)
                self._free(self.read[needed.node])

    def _free(self, storages: tuple[fx.Node, ...]) -> None:
        for storage in storages:
            self.uses[storage] -= 1
            if not self.uses[storage] and storage not in self.keep:
                self.live -= self.size[storage]


class _Backward:
    """From the end: a definition frees, the first use met holds; the last use met of a result holds what was sent."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes) -> None:
        self.tasks = tasks
        self.size = lifetimes.size
        self.made, self.read = lifetimes.made, lifetimes.read
        self.held = set(lifetimes.results)
        self.users = {task.number: len(task.users) for task in tasks if task.track != STREAM}
        for number, users in self.users.items():
            if not users:
                self.held.update(self.read[tasks[number].node])
        self.live = sum(self.size[storage] for storage in self.held)

    def during(self, task: Task) -> int:
        fresh = {*self.made[task.node], *self._used(task)} - self.held
        return self.live + sum(self.size[storage] for storage in fresh)

    def take(self, task: Task) -> None:
        used = self._used(task)
        for number in task.needs:
            if number in self.users:
                self.users[number] -= 1
        for storage in self.made[task.node]:
            if storage in self.held:
                self.held.discard(storage)
                self.live -= self.size[storage]
        for storage in used:
            if storage not in self.held:
                self.held.add(storage)
                self.live += self.size[storage]

    def _used(self, task: Task) -> list[fx.Node]:
        """The storages that a task reads, and those sent by the collectives that it is the first to wait for."""
        used = list(self.read[task.node])
        for number in task.needs:
            if self.users.get(number) == 1:
                used += self.read[self.tasks[number].node]
        return used


_Entry = tuple[float, int]
"""How urgent a task is, negative, and where it stands."""


class Lists:
    """Orders of the tasks of one graph by list scheduling, within a cap on memory."""

    def __init__(self, tasks: Tasks, lifetimes: Lifetimes, cap_bytes: float) -> None:
        self.tasks = tasks
        self.lifetimes = lifetimes
        self.cap_bytes = cap_bytes
        self.short_of_memory = False
        """Whether a task had to be passed over."""

    def orders(self, rounds: int, window: float) -> Iterator[list[Task]]:
        """Orders worth comparing: by the most communication to come, from either end, computing counting little.

        Each is improved by turns from both ends, what ended last being placed first, then what began first ("double
        justification", Valls, Ballestin and Quintanilla, European Journal of Operational Research 165, 2005).

        A task further than `window` tasks behind the first one not placed is not placed yet: the smaller, the closer
        memory stays to that of the order given.
        """
        for weight in _WEIGHTS_OF_COMPUTING:
            for start in (False, True):
                forward = start
                urgency = longest_chains_s(self.tasks, forward=forward, computing=weight)
                for _ in range(rounds):
                    run = _Run(self, urgency, forward, window)
                    yield run.order()
                    urgency = run.next_urgency()
                    forward = not forward


_WEIGHTS_OF_COMPUTING = (0.0, 0.1)


class _Run:
    """The placing of all tasks from one end."""

    def __init__(self, lists: Lists, urgency: Sequence[float], forward: bool, window: float) -> None:
        self.tasks, self.forward = lists.tasks, forward
        self.window = window
        self.beyond: list[int] = []
        """How far tasks that nothing else holds up lie from the end begun at; a heap."""
        self.first = 0
        """How far the first task not placed lies from the end begun at."""
        self.placed = bytearray(len(self.tasks))
        self.release_s = [0.0] * len(self.tasks)
        self.lists = lists
        self.cap_bytes = lists.cap_bytes
        self.urgency = urgency
        lifetimes = lists.lifetimes
        self.live: Live = _Forward(self.tasks, lifetimes) if self.forward else _Backward(self.tasks, lifetimes)
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
        """The tasks in the order in which a program issues them.

        A collective that begins while the stream computes is issued before what then runs, if what it needs is there.
        """
        begin_s = self.placed_s
        if not self.forward:
            last_s = max((self.placed_s[task.number] + task.time_s for task in self.tasks), default=0.0)
            begin_s = [last_s - self.placed_s[task.number] - task.time_s for task in self.tasks]
        near_s = 1e-9 * max(begin_s, default=0.0)
        issued: list[tuple[float, bool, float, Task]] = []
        running_s = until_s = 0.0
        latest_s: dict[str, float] = {}
        for task in sorted(self.tasks, key=lambda task: (begin_s[task.number], task.number)):
            at_s = begin_s[task.number]
            if task.track == STREAM:
                running_s, until_s = at_s, at_s + task.time_s
            else:
                ready_s = max((begin_s[n] + self.tasks[n].time_s for n in task.needs), default=0.0)
                if ready_s <= running_s + near_s and at_s < until_s - near_s:
                    at_s = running_s
                latest_s[task.track] = at_s = max(at_s, latest_s.get(task.track, 0.0))
            issued.append((at_s, task.track == STREAM, begin_s[task.number], task))
        return [task for *_, task in sorted(issued, key=lambda entry: (*entry[:3], entry[3].number))]

    def next_urgency(self) -> list[float]:
        """For a run from the other end: what this one ended last comes first."""
        return [self.placed_s[task.number] + task.time_s for task in self.tasks]

    def _run(self) -> None:
        held_up = [len(task.needs if self.forward else task.users) for task in self.tasks]
        release_s = self.release_s
        for task in self.tasks:
            if not held_up[task.number]:
                heapq.heappush(self.beyond, self._place(task.number))
        for _ in self.tasks:
            task = self._next()
            end_s = self.now_s + task.time_s
            self.placed_s[task.number] = self.now_s
            self.free_s[task.track] = end_s
            self.live.take(task)
            self.placed[self._place(task.number)] = True
            for other in task.users if self.forward else task.needs:
                held_up[other] -= 1
                release_s[other] = max(release_s[other], end_s)
                if not held_up[other]:
                    heapq.heappush(self.beyond, self._place(other))

    def _place(self, number: int) -> int:
        """How far a task lies, in the order given, from the end begun at; and back."""
        return number if self.forward else len(self.tasks) - 1 - number

    def _next(self) -> Task:
        """The next task that a track can take; time goes on until there is one."""
        while self.first < len(self.tasks) and self.placed[self.first]:
            self.first += 1
        while self.beyond and self.beyond[0] < self.first + self.window:
            number = self._place(heapq.heappop(self.beyond))
            heapq.heappush(self.later, (self.release_s[number], number))
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
                bytes_ = self.live.during(self.tasks[abs(entry[1])])
                if bytes_ <= self.cap_bytes:
                    found = entry
                else:
                    skipped.append(entry)
                    self.lists.short_of_memory = True
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
