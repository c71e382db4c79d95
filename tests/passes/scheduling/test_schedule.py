"""The pass `schedule`: less exposed, never above AxoNN's order, within memory, and the same dataflow."""

from __future__ import annotations

from collections import defaultdict

import pytest

from axograph.capture.program import Program, facts
from axograph.cost_model.simulator import STREAM, simulate
from axograph.passes.scheduling.axonn import RULES, axonn_order
from axograph.passes.scheduling.exposed import Exposed
from axograph.passes.scheduling.lists import longest_chains_s
from axograph.passes.scheduling.schedule import SLACK, Schedule
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.scheduling.verify import collectives
from axograph.torch_private import collective_op
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


def test_what_is_only_waited_for_at_the_end_is_waited_for_in_the_order_of_the_starts() -> None:
    tasks, _ = tasks_of(backward())
    nodes = tasks.ordered(tasks)
    last = max(i for i, node in enumerate(nodes) if node in tasks.of)
    starts = [nodes.index(node.args[0]) for node in nodes[last:] if node.target is collective_op("wait_tensor")]
    assert len(starts) > 4
    assert starts == sorted(starts)


def test_what_stays_exposed_says_how_long_and_why(halves: list[tuple[Program, Program]]) -> None:
    for _, after in halves:
        tasks, _ = tasks_of(after)
        waits = simulate(tasks.steps(after.graph.nodes)).exposed_s
        noted = [facts(node).exposed for node in after.graph.nodes if facts(node).exposed is not None]
        assert all(isinstance(exposed, Exposed) and exposed.why for exposed in noted)
        assert sum(exposed.time_s for exposed in noted) == pytest.approx(waits)


def test_each_of_axonns_overlaps_shortens_its_order() -> None:
    forward, _ = tasks_of(split(features=2048))
    behind, _ = tasks_of(backward(features=2048))
    for rule, tasks in (("oar", behind), ("ors", behind), ("oag", forward)):
        others = tuple(other for other in RULES if other != rule)
        assert played_s(tasks, axonn_order(tasks)) < played_s(tasks, axonn_order(tasks, others)), rule


def test_axonns_overlaps_are_in_the_schedule() -> None:
    """All-reduces of backward, reduce-scatters of gradients and gathers of weights hide behind computing."""
    done = Schedule(grid=GRID, cost_model=MODEL).run(split())
    assert done.backward is not None
    assert _hidden(done)["all_gather"] > 0.3
    assert _hidden(done.backward)["all_reduce"] > 0.3
    assert _hidden(done.backward)["reduce_scatter"] > 0.3


def _hidden(program: Program) -> dict[str, float]:
    """For each kind of collective, the part of its seconds that computing hides."""
    tasks, _ = tasks_of(program)
    total_s: dict[str, float] = defaultdict(float)
    exposed_s: dict[str, float] = defaultdict(float)
    for task in tasks:
        moved, exposed = facts(task.node).collective, facts(task.node).exposed
        if moved is not None:
            total_s[moved.kind] += task.time_s
            exposed_s[moved.kind] += min(exposed.time_s, task.time_s) if isinstance(exposed, Exposed) else 0.0
    return {kind: 1 - exposed_s[kind] / total_s[kind] for kind in total_s}
