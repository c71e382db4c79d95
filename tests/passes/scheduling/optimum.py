"""The shortest makespan of tasks that any order could have, by a constraint solver."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

from axograph.cost_model.simulator import STREAM
from axograph.passes.scheduling.tasks import Tasks

_TICKS = 1_000_000
"""Into how many ticks the seconds of all tasks together are divided."""


@dataclass(frozen=True)
class Optimum:
    """What a solver knows of the shortest makespan."""

    bound_s: float
    """Proven: no order takes less."""
    found_s: float
    """The makespan of the best order that it found."""


def optimum(tasks: Tasks, limit_s: float, workers: int = 1) -> Optimum:
    """What the simulator lets an order do: tasks after what they need, one at a time on each track. Memory is free."""
    tick_s = sum(task.time_s for task in tasks) / _TICKS
    model = cp_model.CpModel()
    intervals: dict[str, list[cp_model.IntervalVar]] = {}
    ends: list[cp_model.LinearExpr | cp_model.IntVar] = []
    for task in tasks:
        ticks = int(task.time_s / tick_s)  # rounded down: the bound stays one
        begin = model.new_int_var(0, _TICKS, "")
        intervals.setdefault(task.track, []).append(model.new_fixed_size_interval_var(begin, ticks, ""))
        issued = begin
        if task.track != STREAM and any(tasks[needed].track != STREAM for needed in task.needs):
            # The stream waits for one collective before it issues another: not while it computes.
            issued = model.new_int_var(0, _TICKS, "")
            intervals.setdefault(STREAM, []).append(model.new_fixed_size_interval_var(issued, 0, ""))
            model.add(begin >= issued)
        for needed in task.needs:
            model.add(issued >= ends[needed])
        ends.append(begin + ticks)
    for track in intervals.values():
        model.add_no_overlap(track)
    last = model.new_int_var(0, _TICKS, "")
    model.add_max_equality(last, ends)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.solve(model)
    return Optimum(bound_s=solver.best_objective_bound * tick_s, found_s=solver.objective_value * tick_s)
