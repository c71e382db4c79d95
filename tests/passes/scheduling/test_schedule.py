"""The pass `schedule`: less exposed, never above AxoNN's order, within memory, and the same dataflow."""

from __future__ import annotations

import pytest

from axograph.capture.program import Program, facts
from axograph.cost_model.simulator import STREAM, simulate
from axograph.passes.scheduling.axonn import axonn_order
from axograph.passes.scheduling.exposed import Exposed
from axograph.passes.scheduling.lists import longest_chains_s
from axograph.passes.scheduling.schedule import SLACK, Schedule
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.scheduling.verify import collectives
from tests.passes.scheduling.programs import GRID, MODEL, backward, split, tasks_of


def played_s(tasks: Tasks, nodes: list) -> float:
    return simulate(tasks.steps(nodes)).time_s


@pytest.fixture(scope="module", params=["axonn", None], ids=str)
def halves(request: pytest.FixtureRequest) -> list[tuple[Program, Program]]:
    before = split(request.param)
    after = Schedule(grid=GRID, cost_model=MODEL).run(before)
    assert before.backward is not None
    assert after.backward is not None
    return [(before, after), (before.backward, after.backward)]


def test_a_schedule_takes_no_longer_than_the_given_order_and_axonns(halves: list[tuple[Program, Program]]) -> None:
    for before, after in halves:
        tasks, _ = tasks_of(before)
        scheduled, _ = tasks_of(after)
        found_s = played_s(scheduled, list(after.graph.nodes))
        assert found_s <= played_s(tasks, axonn_order(tasks))
        assert found_s < played_s(tasks, list(before.graph.nodes))
        computing_s = sum(task.time_s for task in tasks if task.track == STREAM)
        assert found_s >= max(computing_s, max(longest_chains_s(tasks, forward=True))) * (1 - 1e-9)


def test_memory_stays_within_the_cap(halves: list[tuple[Program, Program]]) -> None:
    for before, after in halves:
        _, lifetimes = tasks_of(before)
        _, scheduled = tasks_of(after)
        assert scheduled.peak(list(after.graph.nodes)) <= SLACK * lifetimes.peak(list(before.graph.nodes))


def test_the_same_collectives_are_issued(halves: list[tuple[Program, Program]]) -> None:
    for before, after in halves:
        assert sorted(collectives(before.graph)) == sorted(collectives(after.graph))


def test_what_no_task_waits_for_is_waited_for_in_the_order_of_the_starts() -> None:
    """And not all at the end: what was sent is let go before."""
    tasks, _ = tasks_of(backward())
    nodes = tasks.ordered(tasks)
    position = {node: i for i, node in enumerate(nodes)}
    last = max(position[task.node] for task in tasks)
    unused = [task.node for task in tasks if task.track != STREAM and not task.users]
    waits = [min(position[wait] for wait in node.users) for node in unused]
    assert len(unused) > 4
    assert waits == sorted(waits)
    assert waits[0] < last < waits[-1]


def test_what_stays_exposed_says_how_long_and_why(halves: list[tuple[Program, Program]]) -> None:
    for _, after in halves:
        tasks, _ = tasks_of(after)
        waits = simulate(tasks.steps(after.graph.nodes)).exposed_s
        noted = [facts(node).exposed for node in after.graph.nodes if facts(node).exposed is not None]
        assert all(isinstance(exposed, Exposed) and exposed.why for exposed in noted)
        assert sum(exposed.time_s for exposed in noted) == pytest.approx(waits)
