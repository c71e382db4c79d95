"""A program of one rank played against a clock: one stream that computes, and a channel for each kind of link.

A collective begins once it is issued and those issued before it on its channel have ended; the stream goes on
meanwhile, until it waits for the result. Pure numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

STREAM = "compute"
"""The track of the stream that computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that a rank does."""

    kind: Literal["compute", "start", "wait"]
    name: str
    time_s: float = 0.0
    """Seconds of computing, or of the collective that is started."""
    channel: str = ""
    """Of a start: the links that the collective takes."""
    of: int = -1
    """Of a wait: the position of the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When something ran."""

    name: str
    track: str
    """`STREAM` or a channel."""
    step: int
    """The position of the compute step or of the start."""
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A stretch in which the stream stood still."""

    start: int
    """The position of the start of the collective that was waited for."""
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When everything ran."""

    intervals: tuple[Interval, ...]
    waits: tuple[Wait, ...]
    time_s: float
    """Seconds from the first step to the end of the last."""

    def busy_s(self, track: str) -> float:
        """Seconds in which a track was busy."""
        return sum(i.end_s - i.begin_s for i in self.intervals if i.track == track)

    @property
    def exposed_s(self) -> float:
        """Seconds in which the stream stood still."""
        return sum(wait.end_s - wait.begin_s for wait in self.waits)

    @property
    def tracks(self) -> tuple[str, ...]:
        """The stream, and the channels in the order of their first use."""
        return tuple(dict.fromkeys((STREAM, *(i.track for i in self.intervals))))

    def chrome_trace(self, process: str = "rank") -> list[dict[str, Any]]:
        """Events in the Trace Event Format of Chrome and Perfetto; times in microseconds."""
        numbers = {track: number for number, track in enumerate(self.tracks)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": track}}
            for track, number in numbers.items()
        ]

        def event(name: str, track: str, begin_s: float, end_s: float) -> dict[str, Any]:
            return {"ph": "X", "name": name, "pid": process, "tid": numbers[track],
                    "ts": begin_s * 1e6, "dur": (end_s - begin_s) * 1e6}  # fmt: skip

        events += [event(i.name, i.track, i.begin_s, i.end_s) for i in self.intervals]
        events += [event("exposed", STREAM, wait.begin_s, wait.end_s) for wait in self.waits]
        return events


def simulate(steps: Sequence[Step], *, contention: float = 1.0) -> Timeline:
    """Play the steps of a rank in order.

    `contention` is how many times as long computing takes while a collective runs.

    >>> gather = Step(kind="start", name="gather", time_s=2.0, channel="network")
    >>> product = Step(kind="compute", name="product", time_s=1.5)
    >>> simulate([gather, product, Step(kind="wait", name="wait", of=0)]).time_s
    2.0
    """
    clock_s = 0.0
    free_s: dict[str, float] = {}
    ends_s: dict[int, float] = {}
    intervals: list[Interval] = []
    waits: list[Wait] = []
    for position, step in enumerate(steps):
        if step.kind == "compute":
            if step.time_s == 0:
                continue
            slowed_s = max(max(free_s.values(), default=0.0) - clock_s, 0.0)
            end_s = clock_s + step.time_s * contention
            if end_s > clock_s + slowed_s:
                end_s = clock_s + slowed_s + step.time_s - slowed_s / contention
            intervals.append(Interval(name=step.name, track=STREAM, step=position, begin_s=clock_s, end_s=end_s))
            clock_s = end_s
        elif step.kind == "start":
            begin_s = max(clock_s, free_s.get(step.channel, 0.0))
            ends_s[position] = free_s[step.channel] = begin_s + step.time_s
            intervals.append(
                Interval(name=step.name, track=step.channel, step=position, begin_s=begin_s, end_s=ends_s[position])
            )
        elif ends_s[step.of] > clock_s:
            waits.append(Wait(start=step.of, begin_s=clock_s, end_s=ends_s[step.of]))
            clock_s = ends_s[step.of]
    last_s = max([clock_s, *ends_s.values()])
    return Timeline(intervals=tuple(intervals), waits=tuple(waits), time_s=last_s)
