"""How good schedules are: near the optimum where memory is free, and what a cap on memory costs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from axograph.cost_model.simulator import STREAM, simulate
from axograph.passes.scheduling.lists import Lists, least_s
from axograph.passes.scheduling.schedule import Schedule
from axograph.passes.scheduling.tasks import Tasks
from tests.passes.scheduling.blocks import Block
from tests.passes.scheduling.optimum import optimum
from tests.passes.scheduling.programs import GRID, MODEL, backward, tasks_of

PROVEN = (Block("gpt-4096", (4, 1, 1, 2)), Block("mlp-8192", (2, 2, 2, 2), "axonn"))
"""Blocks whose optimum the solver proves in a second or two."""


@pytest.mark.parametrize("block", PROVEN, ids=lambda block: block.name)
def test_a_schedule_is_within_two_percent_of_the_optimum(block: Block) -> None:
    for name, half in block.halves():
        best = optimum(Tasks(half, block.axes, MODEL), limit_s=10.0)
        done = Schedule(grid=block.axes, cost_model=MODEL, slack=math.inf).schedule(half)
        ours_s = simulate(Tasks(done, block.axes, MODEL).steps(done.graph.nodes)).time_s
        assert best.bound_s * (1 - 1e-4) <= ours_s <= 1.02 * best.bound_s, name


def test_less_memory_takes_longer_and_is_never_exceeded() -> None:
    half = backward(None)
    tasks, lifetimes = tasks_of(half)
    given = lifetimes.peak(list(half.graph.nodes))
    times_s = []
    for slack in (math.inf, 1.05, 1.0):
        done = Schedule(grid=GRID, cost_model=MODEL, slack=slack).schedule(half)
        scheduled, lives = tasks_of(done)
        assert lives.peak(list(done.graph.nodes)) <= slack * given
        times_s.append(simulate(scheduled.steps(done.graph.nodes)).time_s)
    assert times_s[0] < min(times_s[1:])
    assert max(times_s) < simulate(tasks.steps(half.graph.nodes)).time_s
    assert times_s[2] > 1.02 * times_s[0]


def test_what_list_scheduling_holds_is_what_lives() -> None:
    """With a cap below what every order takes, no order of list scheduling takes as much as the one that took most."""
    half = backward(None)
    tasks, lifetimes = tasks_of(half)

    def peaks(cap_bytes: float) -> list[int]:
        orders = Lists(tasks, lifetimes, cap_bytes).orders(1, 16)
        return [lifetimes.peak(tasks.ordered(order)) for order in orders]

    free = peaks(math.inf)
    assert max(peaks(min(free) * 0.99)) < max(free)


def test_collectives_of_one_channel_run_one_after_the_other_and_channels_side_by_side() -> None:
    done = Schedule(grid=GRID, cost_model=MODEL).schedule(backward())
    tasks, _ = tasks_of(done)
    timeline = simulate(tasks.steps(done.graph.nodes))
    assert set(timeline.tracks) == {STREAM, "node", "network"}
    for track in timeline.tracks:
        runs = sorted((i.begin_s, i.end_s) for i in timeline.intervals if i.track == track)
        assert all(before[1] <= after[0] for before, after in pairwise(runs)), track
    channels = [[i for i in timeline.intervals if i.track == track] for track in ("node", "network")]
    both_s = sum(max(0.0, min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s)) for a in channels[0] for b in channels[1])
    assert both_s > 0.2 * min(timeline.busy_s("node"), timeline.busy_s("network"))
    assert least_s(tasks) <= timeline.time_s * (1 + 1e-9)
