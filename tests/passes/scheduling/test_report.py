"""`pm.report()` and `pm.timeline()`, and programs whose numbers the schedule does not change by one bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import axograph
from axograph.pipeline import Pass
from tests.zoo import BY_NAME, loss_of


def unscheduled(passes: Sequence[Pass]) -> list[Pass]:
    return [step for step in passes if step.name != "schedule"]


@pytest.mark.parametrize(("name", "grid"), [("gpt", (2, 2, 2, 1)), ("mlp", (1, 1, 2, 2))])
def test_a_scheduled_program_gives_the_same_bits(name: str, grid: tuple[int, int, int, int]) -> None:
    case = BY_NAME[name]
    module = axograph.parallelize(case.model(), grid)
    plain = axograph.parallelize(case.model(), grid, pipeline=unscheduled)
    steppers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, plain)]
    for _ in range(3):
        losses = [loss_of(m(**case.inputs())) for m in (module, plain)]
        assert torch.equal(*losses)
        for stepper, loss in zip(steppers, losses, strict=True):
            stepper.zero_grad()
            loss.backward()
        for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
            assert ours.grad is theirs.grad is None or torch.equal(ours.grad, theirs.grad)
        for stepper in steppers:
            stepper.step()
    names = [
        [n.name for n in m.stages[stage].program.graph.nodes] for m, stage in ((module, "schedule"), (plain, "split"))
    ]
    assert names[0] != names[1]
    assert sorted(names[0]) == sorted(names[1])


def test_a_report_adds_up_and_a_timeline_is_a_trace(tmp_path: Path) -> None:
    case = BY_NAME["gpt"]
    module = axograph.parallelize(case.model(), (2, 2, 2, 2), sample_inputs=case.inputs())
    found = module.report()
    forward, backward = found.halves
    assert found.time_s == forward.timeline.time_s + backward.timeline.time_s
    assert found.exposed_s == pytest.approx(sum(e.time_s for half in found.halves for _, _, e in half.exposed))
    for half in found.halves:
        assert half.bound_s <= half.timeline.time_s * (1 + 1e-9)
    text = str(found)
    assert text.startswith("a step on grid x=2 y=2 z=2 data=2: ")
    assert "exposed" in text
    module.timeline(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {"forward", "backward"}
    ends_us = [event["ts"] + event["dur"] for event in events if event["ph"] == "X" and event["pid"] == "forward"]
    assert max(ends_us) == pytest.approx(forward.timeline.time_s * 1e6)


def test_there_is_no_report_before_a_program() -> None:
    with pytest.raises(axograph.errors.AxographError, match="no plan yet"):
        axograph.parallelize(BY_NAME["mlp"].model(), (2, 1, 1, 1)).report()
