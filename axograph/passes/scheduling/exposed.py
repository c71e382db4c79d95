"""Why a collective stays exposed: how long the stream waits for it, and what would have had to be otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from axograph.cost_model.simulator import Interval, Timeline
from axograph.explanation import duration
from axograph.passes.scheduling.lists import longest_chains_s
from axograph.passes.scheduling.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """What is known of the part of a collective that nothing hides."""

    time_s: float
    """Seconds in which the stream stands still for it."""
    why: str

    def __str__(self) -> str:
        return f"exposed {duration(self.time_s)}: {self.why}"


def reasons(tasks: Tasks, nodes: Sequence[fx.Node], timeline: Timeline) -> dict[str, Exposed]:
    """For each collective that is waited for, by the name of its start: how long and why."""
    waited_s: dict[int, float] = {}
    for wait in timeline.waits:
        waited_s[wait.start] = waited_s.get(wait.start, 0.0) + wait.end_s - wait.begin_s
    began_s = {interval.step: interval.begin_s for interval in timeline.intervals}
    ended_s = {interval.step: interval.end_s for interval in timeline.intervals}
    position = {node: i for i, node in enumerate(nodes)}
    before_s, after_s = (longest_chains_s(tasks, forward=forward) for forward in (False, True))
    queues: dict[str, list[Interval]] = {}
    place: dict[int, int] = {}
    for interval in timeline.intervals:
        queue = queues.setdefault(interval.track, [])
        place[interval.step] = len(queue)
        queue.append(interval)
    found = {}
    for start, time_s in waited_s.items():
        task = tasks.of[nodes[start]]
        ready_s = max((ended_s[position[tasks[n].node]] for n in task.needs), default=0.0)
        chain_s = before_s[task.number] + after_s[task.number] - task.time_s
        queue = _just_before(queues[task.track], place[start], ready_s)
        queued_s = sum(interval.end_s - max(interval.begin_s, ready_s) for interval in queue)
        if chain_s > _NEARLY * timeline.time_s:
            why = f"the longest chain of the program, {duration(chain_s)}, leads through it"
        elif queued_s > 0.5 * time_s:
            why = f"its channel {task.track!r} was busy for {duration(queued_s)}, last with {queue[-1].name}"
        elif began_s[start] > ready_s + time_s:
            why = "it starts late, so that its result is held for less time"
        else:
            why = "what could run beside it hides other communication"
        found[nodes[start].name] = Exposed(time_s=time_s, why=why)
    return found


_NEARLY = 0.95
"""The part of the step that a chain takes which nothing but shortening it would help."""

_MOST_QUEUED = 64
"""How many collectives in the queue before one are looked at."""


def _just_before(channel: Sequence[Interval], at: int, since_s: float) -> list[Interval]:
    """The last intervals on a channel before one of them, as far as they reach beyond a time."""
    return [interval for interval in channel[max(at - _MOST_QUEUED, 0) : at] if interval.end_s > since_s]
