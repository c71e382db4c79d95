"""What a step will take once it is scheduled: an estimate, for passes that choose between programs before that."""

from __future__ import annotations

import math

from axograph.capture.program import Program
from axograph.cost_model.protocol import CostModel
from axograph.cost_model.simulator import simulate
from axograph.grid import Grid
from axograph.passes.scheduling.lists import Lists
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks


def step_s(program: Program, grid: Grid, model: CostModel, contention: float = 1.0) -> float:
    """Seconds of both halves of a split program, each in the shortest of the first orders of list scheduling.

    Memory is not looked at: the pass `schedule` may find less where it is ample, and more where it is short.
    """
    time_s = 0.0
    half: Program | None = program
    while half is not None:
        tasks = Tasks(half, grid, model)
        orders = Lists(tasks, Lifetimes(tasks), math.inf).orders(1, math.inf)
        played = (simulate(tasks.steps(tasks.ordered(order)), contention=contention).time_s for order in orders)
        time_s += min(played, default=0.0)
        half = half.backward
    return time_s
