"""The estimate of a step: near what the schedule then takes, and between it and the order given."""

from __future__ import annotations

from axograph.capture.program import Program
from axograph.cost_model.simulator import simulate
from axograph.passes.scheduling.estimate import step_s
from axograph.passes.scheduling.schedule import Schedule
from tests.passes.scheduling.programs import GRID, MODEL, split, tasks_of


def played_s(program: Program) -> float:
    halves = [half for half in (program, program.backward) if half is not None]
    return sum(simulate(tasks_of(half)[0].steps(half.graph.nodes)).time_s for half in halves)


def test_an_estimate_lies_between_the_schedule_and_the_order_given() -> None:
    given = split()
    scheduled_s = played_s(Schedule(grid=GRID, cost_model=MODEL, slack=10.0).run(given))
    estimate_s = step_s(given, GRID, MODEL)
    assert scheduled_s * (1 - 1e-9) <= estimate_s <= 1.05 * scheduled_s
    assert estimate_s < played_s(given)
