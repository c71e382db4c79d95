"""What a step takes under the cost model: computing, communication, what of it is exposed, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from axograph.capture.program import Program, facts
from axograph.cost_model.memory import readable
from axograph.cost_model.protocol import CostModel
from axograph.cost_model.simulator import Timeline, simulate
from axograph.explanation import duration
from axograph.grid import Grid
from axograph.passes.scheduling.exposed import Exposed
from axograph.passes.scheduling.lists import least_s
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The forward or the backward half of a step."""

    name: str
    timeline: Timeline
    bound_s: float
    """No order takes less: the largest of computing, each channel, and the longest chain."""
    peak_bytes: int
    """The most bytes that live at once, inputs of the half included."""
    exposed: tuple[tuple[str, str, Exposed], ...]
    """The starts of collectives that are waited for: what, of which module, and for how long and why; longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A step of a program, simulated; printed as text."""

    grid: Grid
    halves: tuple[Half, ...]
    chunks: int = 1
    """In how many chunks a rank works on its batch."""

    @property
    def time_s(self) -> float:
        """Seconds of the whole step, without the optimizer."""
        return sum(half.timeline.time_s for half in self.halves)

    @property
    def exposed_s(self) -> float:
        """Seconds in which computing stands still."""
        return sum(half.timeline.exposed_s for half in self.halves)

    def __str__(self) -> str:
        share = self.exposed_s / self.time_s if self.time_s else 0.0
        chunked = f" in {self.chunks} chunks" if self.chunks > 1 else ""
        step = f"a step on grid {self.grid}{chunked}"
        lines = [f"{step}: {duration(self.time_s)}, {duration(self.exposed_s)} of it exposed ({share:.0%})"]
        for half in self.halves:
            played = half.timeline
            busy = ", ".join(f"{track} {duration(played.busy_s(track))}" for track in played.tracks)
            lines.append(
                f"  {half.name}: {duration(played.time_s)} (no order below {duration(half.bound_s)}); {busy}; "
                f"peak {readable(half.peak_bytes)}"
            )
            for what, where, exposed in half.exposed[:_SHOWN]:
                lines.append(f"    {what}{f' of {where}' if where else ''}: {exposed}")
            if len(half.exposed) > _SHOWN:
                rest = half.exposed[_SHOWN:]
                lines.append(f"    and {len(rest)} more: {duration(sum(exposed.time_s for _, _, exposed in rest))}")
        return "\n".join(lines)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timelines in Chrome's Trace Event Format, one process for each half; opens in Perfetto."""
        events = [event for half in self.halves for event in half.timeline.chrome_trace(half.name)]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


_SHOWN = 8


def report(program: Program, grid: Grid, model: CostModel, contention: float = 1.0) -> Report:
    """Simulate both halves of a split program."""
    halves: Sequence[tuple[str, Program | None]] = (("forward", program), ("backward", program.backward))
    return Report(
        grid=grid,
        chunks=1 + max(facts(node).chunk or 0 for node in program.graph.nodes),
        halves=tuple(_half(name, half, grid, model, contention) for name, half in halves if half is not None),
    )


def _half(name: str, program: Program, grid: Grid, model: CostModel, contention: float) -> Half:
    tasks = Tasks(program, grid, model)
    nodes = list(program.graph.nodes)
    played = simulate(tasks.steps(nodes), contention=contention)
    exposed = []
    for node in nodes:
        about = facts(node)
        if about.collective is not None and isinstance(about.exposed, Exposed):
            exposed.append(
                (f"{about.collective.kind} over {'.'.join(about.collective.axes)}", about.path, about.exposed)
            )
    exposed.sort(key=lambda item: -item[2].time_s)
    return Half(
        name=name,
        timeline=played,
        bound_s=least_s(tasks),
        peak_bytes=Lifetimes(tasks).peak(nodes),
        exposed=tuple(exposed),
    )
