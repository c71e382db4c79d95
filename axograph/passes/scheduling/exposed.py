"""Why a collective stays exposed: how long the stream waits for it, and what would have had to be otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from axograph.cost_model.simulator import STREAM, Timeline
from axograph.passes.scheduling.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """What is known of the part of a collective that nothing hides."""

    time_s: float
    """Seconds in which the stream stands still for it."""
    why: str

    def __str__(self) -> str:
        return f"exposed {self.time_s * 1e6:.1f} us: {self.why}"


def reasons(tasks: Tasks, nodes: Sequence[fx.Node], timeline: Timeline) -> dict[str, Exposed]:
    """For each collective that is waited for, by the name of its start: how long and why."""
    waited_s: dict[int, float] = {}
    for wait in timeline.waits:
        waited_s[wait.start] = waited_s.get(wait.start, 0.0) + wait.end_s - wait.begin_s
    found = {}
    began_s = {interval.step: interval.begin_s for interval in timeline.intervals}
    ended_s = {interval.step: interval.end_s for interval in timeline.intervals}
    position = {node: i for i, node in enumerate(nodes)}
    for start, time_s in waited_s.items():
        task = tasks.of[nodes[start]]
        ready_s = max((ended_s[position[tasks[n].node]] for n in task.needs), default=0.0)
        beside_s = _independent_s(tasks, task.number)
        queue = [
            interval
            for interval in timeline.intervals
            if interval.track == task.track and interval.step != start
            and ready_s < interval.end_s <= began_s[start] + 1e-12
        ]  # fmt: skip
        queued_s = sum(interval.end_s - max(interval.begin_s, ready_s) for interval in queue)
        if queued_s > 0.5 * time_s:
            why = f"the channel {task.track!r} was busy for {queued_s * 1e6:.1f} us, last with {queue[-1].name}"
        elif beside_s < task.time_s:
            why = f"only {beside_s * 1e6:.1f} us of computing depend neither on it nor it on them"
        else:
            why = "what could run beside it hides other communication, or would hold too much memory"
        found[nodes[start].name] = Exposed(time_s=time_s, why=why)
    return found


def _independent_s(tasks: Tasks, number: int) -> float:
    """Seconds of computing that neither leads to a task nor follows from it."""
    related = {number}
    for edges in ("needs", "users"):
        waiting = [number]
        seen = {number}
        while waiting:
            for other in getattr(tasks[waiting.pop()], edges):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        related |= seen
    return sum(task.time_s for task in tasks if task.track == STREAM and task.number not in related)
