"""The simulator: what overlaps, what waits, and what queues on a channel."""

from __future__ import annotations

import pytest

from axograph.cost_model.simulator import STREAM, Step, simulate


def compute(time_s: float, name: str = "compute") -> Step:
    return Step(kind="compute", name=name, time_s=time_s)


def start(time_s: float, channel: str = "network", name: str = "start") -> Step:
    return Step(kind="start", name=name, time_s=time_s, channel=channel)


def wait(of: int) -> Step:
    return Step(kind="wait", name="wait", of=of)


def test_a_collective_hides_behind_what_runs_before_its_wait() -> None:
    found = simulate([start(2.0), compute(1.5), wait(0), compute(1.0)])
    assert found.time_s == 3.0
    assert found.exposed_s == 0.5
    assert found.busy_s(STREAM) == 2.5
    assert found.busy_s("network") == 2.0
    assert [(w.start, w.begin_s, w.end_s) for w in found.waits] == [(0, 1.5, 2.0)]


def test_a_collective_that_is_waited_for_at_once_is_exposed() -> None:
    found = simulate([start(2.0), wait(0), compute(1.5)])
    assert (found.time_s, found.exposed_s) == (3.5, 2.0)


def test_collectives_queue_on_their_channel_and_only_there() -> None:
    same = simulate([start(2.0), start(1.0), wait(1), wait(0)])
    other = simulate([start(2.0), start(1.0, "node"), wait(1), wait(0)])
    assert (same.time_s, other.time_s) == (3.0, 2.0)
    assert other.tracks == (STREAM, "network", "node")


def test_a_collective_that_nothing_waits_for_ends_within_the_step() -> None:
    assert simulate([compute(1.0), start(2.0)]).time_s == 3.0


@pytest.mark.parametrize(
    ("computing_s", "expected_s"),
    [(1.0, 1.5), (2.0, 3.0), (4.0, 5.0)],  # all, all, and two thirds of three seconds under the collective
)
def test_contention_slows_what_runs_beside_a_collective(computing_s: float, expected_s: float) -> None:
    assert simulate([start(3.0), compute(computing_s)], contention=1.5).intervals[1].end_s == expected_s


def test_the_trace_has_a_track_for_the_stream_and_each_channel() -> None:
    events = simulate([start(2.0, name="gather"), compute(1.5), wait(0)]).chrome_trace()
    names = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    assert names == {STREAM: 0, "network": 1}
    spans = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [("gather", 1, 0.0, 2e6), ("compute", 0, 0.0, 1.5e6), ("exposed", 0, 1.5e6, 0.5e6)]
