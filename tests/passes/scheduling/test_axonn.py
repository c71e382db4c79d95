"""AxoNN's three overlaps: in the printed schedule, each worth its place, and never ahead of the schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from axograph.capture.listing import listing
from axograph.capture.program import Program, facts
from axograph.cost_model.simulator import simulate
from axograph.passes.scheduling.axonn import RULES, axonn_order
from axograph.passes.scheduling.schedule import SLACK, Schedule
from axograph.passes.scheduling.tasks import Tasks
from tests.passes.scheduling.programs import GRID, MODEL, split, tasks_of

OVERLAPS = {"oar": ("backward", "all_reduce"), "ors": ("backward", "reduce_scatter"), "oag": ("forward", "all_gather")}


def halves(program: Program) -> dict[str, Program]:
    assert program.backward is not None
    return {"forward": program, "backward": program.backward}


@cache
def scheduled() -> dict[str, Program]:
    return halves(Schedule(grid=GRID, cost_model=MODEL).run(split()))


def played_s(tasks: Tasks, rules: tuple[str, ...] = RULES) -> float:
    return simulate(tasks.steps(axonn_order(tasks, rules))).time_s


@pytest.mark.parametrize("rule", RULES)
def test_each_overlap_is_in_the_printed_schedule(rule: str) -> None:
    """Between starts of this kind and their waits the program reads products."""
    name, kind = OVERLAPS[rule]
    half = scheduled()[name]
    started: dict[str, int] = {}
    products = hidden = 0
    names = {n.name for n in half.graph.nodes if getattr(facts(n).collective, "kind", None) == kind}
    for line in listing(replace(half, backward=None)).splitlines():
        made, _, made_by = line.partition(": ")
        products += " = aten.mm(" in made_by or " = aten.addmm(" in made_by
        if made in names:
            started[made] = products
        elif "wait_tensor(" in made_by:
            of = made_by.rpartition("wait_tensor(")[2].partition(")")[0]
            hidden += of in started and products > started[of]
    assert hidden >= 4, f"{hidden} of {len(names)}"


@pytest.mark.parametrize("rule", RULES)
def test_without_one_of_its_overlaps_axonns_step_grows(rule: str) -> None:
    others = tuple(other for other in RULES if other != rule)
    tasks = [tasks_of(half)[0] for half in halves(split(features=2048)).values()]
    assert sum(map(played_s, tasks)) < sum(played_s(half, others) for half in tasks)


def test_the_step_is_never_above_axonns_own_order() -> None:
    """Gradients on their way are let go when they have arrived, so that AxoNN's order fits the memory, and competes."""
    for name, half in halves(split()).items():
        tasks, lifetimes = tasks_of(half)
        after, lives = tasks_of(scheduled()[name])
        assert simulate(after.steps(after.graph.nodes)).time_s <= played_s(tasks)
        given = lifetimes.peak(list(half.graph.nodes))
        assert lifetimes.peak(axonn_order(tasks)) <= SLACK * given
        assert lives.peak(list(after.graph.nodes)) <= SLACK * given
