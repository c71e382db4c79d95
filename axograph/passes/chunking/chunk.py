"""The pass `chunk`: the local batch is worked on in chunks, where one computes while another communicates.

Along x and y the next operator waits for each all-reduce; without chunks nothing is there to compute meanwhile.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from axograph.capture.program import Program, facts
from axograph.cost_model.protocol import Compute, CostModel
from axograph.errors import PlanError
from axograph.grid import Grid
from axograph.passes.chunking.cuts import Cuts, Part, Survey, share
from axograph.passes.chunking.emit import Chunker
from axograph.passes.dataflow import only_gradients
from axograph.passes.remat import Remat
from axograph.passes.scheduling.estimate import half_s
from axograph.passes.scheduling.memory import Lifetimes, room_bytes
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.split import Split

Chunks = int | Literal["auto"]
"""How many chunks; "auto" for the number with the shortest step."""

TRIED = (2, 4)
"""The numbers of chunks that are compared with one."""

LEAST_GAIN = 0.03
"""The part of a step that more chunks must save: an estimate is not closer than that to what the clock says."""

LARGE = 2000
"""Of a program with more tasks than that, still more chunks are only tried for twice the least gain."""

MOST = 0.95
"""How much of the communication that any part can cut the part chosen cuts: the batch comes before other dims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Cut each rank's batch in chunks that follow each other through the program."""

    grid: Grid
    cost_model: CostModel
    chunks: Chunks = "auto"
    batch_dims: Mapping[int, int | None] = field(default_factory=dict)
    """The dim of each user input that carries the batch, None for an input without one."""
    memory_bytes: float = math.inf
    """The most that a rank may hold during a step."""
    name: str = "chunk"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program in chunks; as it was where one is best.

        Raises `PlanError` where nothing can be cut in as many equal chunks as asked.
        """
        if self.chunks == "auto":
            return program if self.grid.size == 1 else self._best(program)
        if self.chunks == 1:
            return program
        survey = Survey(program, self.batch_dims)
        part = self._part(survey, self.chunks)
        if part is None:
            raise _indivisible(self.chunks, survey)
        return Chunker(program, Cuts(survey, part, self.chunks, self.cost_model, self.grid)).run()

    def _best(self, program: Program) -> Program:
        """The program with the shortest step, of those that fit into memory."""
        most_gain_s = self._most_gain_s(program)
        if most_gain_s <= 0:
            return program
        whole = self._halves(program)
        best, best_s = program, sum(map(half_s, whole))
        busy_s = _busy_s(whole)
        once_s = best_s
        if max(*busy_s.values(), once_s - most_gain_s) >= once_s * (1 - LEAST_GAIN):
            return program
        survey = Survey(program, self.batch_dims)
        spare_bytes = room_bytes(program, self.memory_bytes)
        for chunks in TRIED:
            part = self._part(survey, chunks)
            if part is None:
                continue
            cuts = Cuts(survey, part, chunks, self.cost_model, self.grid)
            bound_s = max(time_s + cuts.more_s[track] for track, time_s in busy_s.items())
            bound_s = max(bound_s, once_s - cuts.most_gain_s)
            if best is not program:  # of what stays exposed, twice as many chunks leave about half
                bound_s = (best_s + bound_s) / 2
            again = best is not program and sum(map(len, whole)) > LARGE
            if bound_s >= best_s * (1 - LEAST_GAIN * (1 + again)):
                continue
            candidate = Chunker(program, cuts).run()
            halves = self._halves(candidate)
            candidate_s = sum(map(half_s, halves))
            if candidate_s < best_s * (1 - LEAST_GAIN) and _fits(halves, whole, spare_bytes):
                best, best_s = candidate, candidate_s
            elif candidate_s >= best_s:  # still more chunks hide no more
                break
        return best

    def _most_gain_s(self, program: Program) -> float:
        """What two chunks save at most, as far as is seen from prices alone.

        They hide at most what is communicated, but for weights and their gradients, and cost what is done more: every
        operator is launched twice, every collective has its latency twice. 0 where that is too little of a step.
        """
        tasks = Tasks(program, self.grid, self.cost_model)
        ends = only_gradients(program)
        step_s = gain_s = 0.0
        launch_s = self.cost_model.compute_s(Compute(op="launch", flops=0.0, size_bytes=1.0, dtype="f32"))
        for task in tasks:
            step_s += task.time_s
            if task.number in tasks.of_weights or task.node in ends:
                continue
            moved = facts(task.node).collective
            if moved is None:
                gain_s -= launch_s
            else:
                gain_s += 2 * (task.time_s - self.cost_model.collective_s(share(moved, 2), self.grid))
        return gain_s if gain_s > LEAST_GAIN * step_s else 0.0

    def _halves(self, program: Program) -> list[Tasks]:
        """The tasks of both halves, as they are split."""
        blocks = program.plan is not None and program.plan.remat == "block"
        remat: Remat = "block" if blocks else "none"
        split = Split(grid=self.grid, cost_model=self.cost_model, remat=remat).run(program)
        return [Tasks(half, self.grid, self.cost_model) for half in split.halves()]

    def _part(self, survey: Survey, chunks: int) -> Part | None:
        """The outermost part that can be cut so often, and along which most of what is communicated can be cut.

        Weights and their gradients do not count: nothing in between waits for them.
        """

        def cut_s(part: Part) -> float:
            moved = (facts(node).collective for node in part.units if node not in survey.apart)
            return sum(self.cost_model.collective_s(one, self.grid) for one in moved if one is not None)

        parts = [(part, cut_s(part)) for part in survey.parts if part.size % chunks == 0]
        most_s = max((time_s for _, time_s in parts), default=0.0)
        return next((part for part, time_s in parts if time_s >= MOST * most_s), None)


def _busy_s(halves: Sequence[Tasks]) -> dict[str, float]:
    """The seconds of a step in which each track is busy."""
    busy_s = defaultdict[str, float](float)
    for tasks in halves:
        for task in tasks:
            busy_s[task.track] += task.time_s
    return busy_s


def _fits(halves: Sequence[Tasks], before: Sequence[Tasks], spare_bytes: float) -> bool:
    """Whether no half, in the order given, takes more memory than before, but for what is to spare."""
    if math.isinf(spare_bytes):
        return True
    return all(_peak(now) <= _peak(then) + spare_bytes for now, then in zip(halves, before, strict=True))


def _peak(tasks: Tasks) -> int:
    return Lifetimes(tasks).peak(list(tasks.graph.nodes))


def check_chunks(asked: Chunks) -> None:
    """Raise `PlanError` for what is no number of chunks."""
    if asked == "auto" or (isinstance(asked, int) and not isinstance(asked, bool) and asked >= 1):
        return
    raise PlanError(
        f"{asked!r} is not a number of chunks",
        asked=f"chunks={asked!r}",
        given="the number of chunks in which each rank works on its batch",
        rule='chunks is a positive integer, or "auto" for the number with the shortest step',
        remedy='chunks="auto", or chunks=1 for the whole batch at once',
    )


def _indivisible(chunks: int, survey: Survey) -> PlanError:
    sizes = [str(part.size) for part in survey.parts]
    return PlanError(
        f"a rank's batch cannot be cut in {chunks} chunks",
        asked=f"chunks={chunks}",
        given=f"inputs whose dims fall, on one rank, into parts of {', '.join(sizes)}"
        if sizes
        else "inputs without a batch",
        rule="chunks are equally large: their number divides a part of the batch, or of another dim of the inputs",
        remedy='chunks="auto", or a larger batch',
    )
