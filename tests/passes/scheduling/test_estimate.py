"""The estimate of a step: near what the schedule then takes, and between it and the order given."""

from __future__ import annotations

from axograph.cost_model.simulator import simulate
from axograph.passes.scheduling.estimate import step_s
from axograph.passes.scheduling.schedule import Schedule
from tests.passes.scheduling.programs import GRID, MODEL, split, tasks_of


def test_an_estimate_lies_between_the_schedule_and_the_order_given() -> None:
    given = split()
    done = Schedule(grid=GRID, cost_model=MODEL, slack=10.0).run(given)
    assert given.backward is not None
    assert done.backward is not None
    in_order, scheduled = (
        sum(simulate(tasks_of(half)[0].steps(half.graph.nodes)).time_s for half in (whole, whole.backward) if half)
        for whole in (given, done)
    )
    estimate = step_s(given, GRID, MODEL)
    assert scheduled <= estimate * (1 + 1e-9)
    assert estimate <= 1.05 * scheduled
    assert estimate < in_order
