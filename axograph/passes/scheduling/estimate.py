"""What a step will take once it is scheduled: an estimate, for passes that choose between programs before that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from axograph.capture.program import Program
from axograph.cost_model.protocol import CostModel
from axograph.grid import Grid
from axograph.passes.scheduling.lists import Lists
from axograph.passes.scheduling.tasks import Clock, Task, Tasks


def step_s(program: Program, grid: Grid, model: CostModel, contention: float = 1.0) -> float:
    """Seconds of both halves of a split program, each in the shortest of the first orders of list scheduling.

    Memory is not looked at: the pass `schedule` may find less where it is ample, and more where it is short.
    """
    return sum(half_s(Tasks(half, grid, model), contention) for half in program.halves())


def half_s(tasks: Sequence[Task], contention: float = 1.0) -> float:
    """Seconds of one half, given as its tasks, likewise."""
    orders = islice(Lists(tasks).orders(1, math.inf), _STARTS)
    return min((order_s(order, contention) for order in orders), default=0.0)


_STARTS = 3
"""How many orders are tried."""


def order_s(order: Sequence[Task], contention: float = 1.0) -> float:
    """What `simulate` says of tasks in an order in which each follows what it needs, and nothing else."""
    clock = Clock(contention)
    for task in order:
        clock.run(task)
    return max(clock.now_s, clock.last_s)
