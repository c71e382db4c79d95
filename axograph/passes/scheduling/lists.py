"""List scheduling of tasks, from the beginning of a program or from its end, within a cap on memory.

Each track takes, whenever it is free, the most urgent task that nothing holds up any more. From the end (as XLA's
latency-hiding scheduler goes) a collective runs as late as it can without being waited for, and its result is held as
short as possible; from the beginning, what nothing waits for yet (the gradients of weights) fills the gaps. A task that
would lift memory above the cap is passed over while another is there.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torch import fx

from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Task


def longest_chains_s(tasks: Sequence[Task], *, forward: bool, computing: float = 1.0) -> list[float]:
    """For each task, the seconds of the longest chain of tasks that it begins (`forward`) or ends.

    Seconds of computing count `computing` times.
    """
    chain_s = [0.0] * len(tasks)
    for task in reversed(tasks) if forward else tasks:
        own_s = task.time_s * computing if task.track == STREAM else task.time_s
        onward = task.users if forward else task.needs
        chain_s[task.number] = own_s + max((chain_s[other] for other in onward), default=0.0)
    return chain_s


def least_s(tasks: Sequence[Task]) -> float:
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

    def ended(self, task: Task) -> None:
        """A collective that no task waits for has ended."""
        ...


class _Storages:
    """What each task makes and reads, by its number: storages are numbers too."""

    def __init__(self, tasks: Sequence[Task], lifetimes: Lifetimes) -> None:
        numbers = {storage: number for number, storage in enumerate(lifetimes.size)}

        def numbered(storages: Iterable[fx.Node]) -> tuple[int, ...]:
            return tuple(numbers[storage] for storage in storages)

        self.size = list(lifetimes.size.values())
        self.made = [numbered(lifetimes.made[task.node]) for task in tasks]
        self.read = [numbered(lifetimes.read[task.node]) for task in tasks]
        self.made_bytes = [sum(self.size[storage] for storage in made) for made in self.made]
        self.communicates = [task.track != STREAM for task in tasks]
        self.awaits = [tuple(n for n in task.needs if self.communicates[n]) for task in tasks]
        """The collectives that a task waits for, if no other task has before."""
        self.results = set(numbered(lifetimes.results))
        self.inputs = numbered(lifetimes.inputs)


class _Forward:
    """From the beginning: a definition holds, the last use frees; the first use of a result frees what was sent."""

    def __init__(self, tasks: Sequence[Task], of: _Storages) -> None:
        self.of = of
        self.uses = [0] * len(of.size)
        for task in tasks:
            for storage in of.read[task.number]:
                self.uses[storage] += 1 + of.communicates[task.number]
        for storage in of.results:
            self.uses[storage] += 1
        self.waited = bytearray(len(tasks))
        self.live = sum(of.size[storage] for storage in of.inputs if self.uses[storage])

    def during(self, task: Task) -> int:
        return self.live + self.of.made_bytes[task.number]

    def take(self, task: Task) -> None:
        of = self.of
        for storage in of.made[task.number]:
            if self.uses[storage]:
                self.live += of.size[storage]
        self._free(of.read[task.number])
        for number in of.awaits[task.number]:
            if not self.waited[number]:
                self.waited[number] = True
                self._free(of.read[number])

    def ended(self, task: Task) -> None:
        self._free(self.of.read[task.number])

    def _free(self, storages: tuple[int, ...]) -> None:
        for storage in storages:
            self.uses[storage] -= 1
            if not self.uses[storage]:
                self.live -= self.of.size[storage]


class _Backward:
    """From the end: a definition frees, the first use met holds; the last use met of a result holds what was sent."""

    def __init__(self, tasks: Sequence[Task], of: _Storages) -> None:
        self.of = of
        self.held = bytearray(len(of.size))
        self.users = [len(task.users) for task in tasks]
        self.live = 0
        self._hold(of.results)

    def during(self, task: Task) -> int:
        fresh = {s for s in (*self.of.made[task.number], *self._used(task)) if not self.held[s]}
        return self.live + sum([self.of.size[storage] for storage in fresh])

    def take(self, task: Task) -> None:
        used = self._used(task)
        for number in self.of.awaits[task.number]:
            self.users[number] -= 1
        for storage in self.of.made[task.number]:
            if self.held[storage]:
                self.held[storage] = False
                self.live -= self.of.size[storage]
        self._hold(used)

    def ended(self, task: Task) -> None:
        pass

    def _hold(self, storages: Iterable[int]) -> None:
        for storage in storages:
            if not self.held[storage]:
                self.held[storage] = True
                self.live += self.of.size[storage]

    def _used(self, task: Task) -> tuple[int, ...]:
        """The storages that a task reads, and those sent by the collectives that it is the first to wait for."""
        used = self.of.read[task.number]
        for number in self.of.awaits[task.number]:
            if self.users[number] == 1:
                used += self.of.read[number]
        return used


class _Unlimited:
    """Where no memory is short."""

    def during(self, task: Task) -> int:
        return 0

    def take(self, task: Task) -> None:
        pass

    def ended(self, task: Task) -> None:
        pass


_Entry = tuple[float, int]
"""How urgent a task is, negative, and where it stands."""


class Lists:
    """Orders of the tasks of one graph by list scheduling, within a cap on memory."""

    def __init__(self, tasks: Sequence[Task], lifetimes: Lifetimes | None = None, cap_bytes: float = math.inf) -> None:
        self.tasks = list(tasks)
        self.cap_bytes = cap_bytes
        self.storages = _Storages(self.tasks, lifetimes) if lifetimes is not None else None
        self.short_of_memory = False
        """Whether a task had to be passed over."""

    def orders(self, rounds: int, window: float) -> Iterator[list[Task]]:
        """Orders worth comparing: first come, first served; then by the most communication to come, from either end.

        The first begins what it can in the order given; in the others computing counts little.

        Each is improved by turns from both ends, what ended last being placed first, then what began first ("double
        justification", Valls, Ballestin and Quintanilla, European Journal of Operational Research 165, 2005).

        A task further than `window` tasks behind the first one not placed is not placed yet: the smaller, the closer
        memory stays to that of the order given.
        """
        yield from self._improved([-float(task.number) for task in self.tasks], True, rounds, window)
        for weight in _WEIGHTS_OF_COMPUTING:
            for forward in (False, True):
                urgency = longest_chains_s(self.tasks, forward=forward, computing=weight)
                yield from self._improved(urgency, forward, rounds, window)

    def _improved(self, urgency: list[float], forward: bool, rounds: int, window: float) -> Iterator[list[Task]]:
        for _ in range(rounds):
            run = _Run(self, urgency, forward, window)
            yield run.order()
            urgency = run.next_urgency()
            forward = not forward

    def live(self, forward: bool) -> Live:
        """What lives before the first task is taken from this end."""
        if self.storages is None or math.isinf(self.cap_bytes):
            return _Unlimited()
        return (_Forward if forward else _Backward)(self.tasks, self.storages)


_WEIGHTS_OF_COMPUTING = (0.0, 0.1)


class _Run:
    """The placing of all tasks from one end."""

    def __init__(self, lists: Lists, urgency: Sequence[float], forward: bool, window: float) -> None:
        self.tasks, self.forward = lists.tasks, forward
        self.lists = lists
        self.urgency = urgency
        self.window = window
        self.live = lists.live(forward)
        self.now_s = 0.0
        self.free_s = {task.track: 0.0 for task in self.tasks}
        self.ready: dict[str, list[_Entry]] = {track: [] for track in self.free_s}
        """The tasks that nothing holds up, by track; heaps."""
        self.later: list[tuple[float, int]] = []
        """Tasks that are released at a time to come; a heap."""
        self.beyond: list[int] = []
        """How far tasks that nothing else holds up lie from the end begun at; a heap."""
        self.unused: list[tuple[float, int]] = []
        """When each collective ends that no task waits for; a heap."""
        self.first = 0
        """How far the first task not placed lies from the end begun at."""
        self.placed = bytearray(len(self.tasks))
        self.release_s = [0.0] * len(self.tasks)
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
        release_s, placed_s = self.release_s, self.placed_s
        for task in self.tasks:
            if not held_up[task.number]:
                self._release(task.number)
        for _ in self.tasks:
            task = self._next()
            end_s = self.now_s + task.time_s
            placed_s[task.number] = self.now_s
            self.free_s[task.track] = end_s
            self.live.take(task)
            if not task.users and task.track != STREAM:
                heapq.heappush(self.unused, (end_s + task.time_s, task.number))
            self.placed[self._place(task.number)] = True
            for other in task.users if self.forward else task.needs:
                held_up[other] -= 1
                if release_s[other] < end_s:
                    release_s[other] = end_s
                if not held_up[other]:
                    self._release(other)

    def _place(self, number: int) -> int:
        """How far a task lies, in the order given, from the end begun at; and back."""
        return number if self.forward else len(self.tasks) - 1 - number

    def _release(self, number: int) -> None:
        """No other task holds this one up any more."""
        if self.window < len(self.tasks):
            heapq.heappush(self.beyond, self._place(number))
        elif self.release_s[number] <= self.now_s:
            self._admit(number)
        else:
            heapq.heappush(self.later, (self.release_s[number], number))

    def _admit(self, number: int) -> None:
        """The time has come from which a task may be taken."""
        place = number if self.forward else -number
        heapq.heappush(self.ready[self.tasks[number].track], (-self.urgency[number], place))

    def _next(self) -> Task:
        """The next task that a track can take; time goes on until there is one."""
        if self.window < len(self.tasks):
            while self.placed[self.first]:
                self.first += 1
            while self.beyond and self.beyond[0] < self.first + self.window:
                number = self._place(heapq.heappop(self.beyond))
                heapq.heappush(self.later, (self.release_s[number], number))
        later = self.later
        while True:
            while later and later[0][0] <= self.now_s:
                self._admit(heapq.heappop(later)[1])
            while self.unused and self.unused[0][0] <= self.now_s:
                self.live.ended(self.tasks[heapq.heappop(self.unused)[1]])
            taken = self._taken()
            if taken is not None:
                return taken
            times = [end_s for end_s in self.free_s.values() if end_s > self.now_s]
            if later:
                times.append(later[0][0])
            self.now_s = min(times)

    def _taken(self) -> Task | None:
        """The most urgent task of a track that is free and that fits; if none ever will, the one that adds least."""
        passed: list[tuple[int, str, _Entry]] = []
        for track, heap in self.ready.items():
            if not heap or self.free_s[track] > self.now_s:
                continue
            skipped: list[_Entry] = []
            found = None
            while heap and found is None and len(skipped) < _LOOK:
                entry = heapq.heappop(heap)
                bytes_ = self.live.during(self.tasks[abs(entry[1])])
                if bytes_ <= self.lists.cap_bytes:
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
