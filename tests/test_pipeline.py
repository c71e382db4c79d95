"""The runner: stages kept and timed, observers, notes on errors; and pipelines that users change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import axograph
from axograph.capture.program import Program
from axograph.capture.trace import capture
from axograph.passes.rewrite import rebuild
from axograph.pipeline import Pass, Stage, Stages, run

REWRITES = ["unsort-experts", "group-heads", "recognize-causal"]
STANDARD = ["normalize", *REWRITES, "shard", "localize", "simplify", "chunk", "split", "bucket", "schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """Changes nothing but the name of the graph's class."""

    to: str = "Renamed"
    name: str = "rename"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        return rebuild(program, lambda emit, node, args, kwargs: emit.copy(node, args, kwargs), self.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    name: str = "fail"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        raise RuntimeError("it does not work")


@dataclass(frozen=True, slots=True, kw_only=True)
class Double:
    """Doubles every linear layer's bias: the numbers change."""

    name: str = "double-bias"
    preserves_numerics: bool = False

    def run(self, program: Program) -> Program:
        aten = torch.ops.aten

        def visit(emit, node, args, kwargs):  # type: ignore[no-untyped-def]
            if node.target is aten.add.Tensor:
                return emit.call(aten.add.Tensor, *args, alpha=2)
            return emit.copy(node, args, kwargs)

        return rebuild(program, visit, "Doubled")


def small() -> Program:
    with torch.no_grad():
        return capture(nn.Linear(4, 4), (torch.zeros(2, 4),))


def test_passes_run_in_turn_and_every_program_is_kept() -> None:
    stages, seen = Stages(), []
    last = run(small(), (Rename(), Rename(name="again", to="Again")), stages, (seen.append,))
    assert list(stages) == ["rename", "again"]
    assert seen == [stages["rename"], stages["again"]]
    assert stages["again"].program is last
    classes = [type(stage.program.graph_module).__name__ for stage in stages.values()]
    assert classes == ["Renamed", "Again"]
    assert all(0 <= stage.time_s < 10 for stage in stages.values())


def test_an_error_names_its_pass_and_keeps_the_stages_before_it() -> None:
    stages, seen = Stages(), []
    with pytest.raises(RuntimeError, match="it does not work") as failure:
        run(small(), (Rename(), Fail(), Rename(name="later")), stages, (seen.append,))
    assert failure.value.__notes__ == ["in the pass 'fail'; the stages before it are kept: rename"]
    assert list(stages) == ["rename"]
    assert len(seen) == 1


def test_a_stage_prints_who_made_it_its_time_and_the_program() -> None:
    stage = Stage(name="rename", program=small(), time_s=0.0125)
    lines = str(stage).splitlines()
    assert lines[0] == "# after rename, 0.013 s" or lines[0] == "# after rename, 0.012 s"
    assert lines[1] == "parameter_weight: f32[4, 4] = input parameter weight"
    stages = Stages()
    stages.add(stage)
    assert re.fullmatch(r"rename +\d+ nodes +0\.01\d s", str(stages))


def test_a_pass_is_anything_with_a_name_and_a_run() -> None:
    assert isinstance(Rename(), Pass)
    assert not isinstance(object(), Pass)


def test_the_stages_of_a_module_are_those_of_its_latest_compilation() -> None:
    seen: list[Stage] = []
    module = axograph.parallelize(nn.Linear(4, 4), (1, 1, 1, 1), observers=(seen.append,))
    assert len(module.stages) == 0
    module(torch.zeros(2, 4))
    assert list(module.stages) == ["capture", *STANDARD]
    assert seen == list(module.stages.values())
    first = module.stages
    module(torch.zeros(4, 4))
    assert module.stages is not first
    assert len(seen) == 2 * len(first)


def test_a_user_can_insert_a_pass() -> None:
    def insert(standard: Sequence[Pass]) -> Sequence[Pass]:
        assert [step.name for step in standard] == STANDARD
        return (standard[0], Rename(), *standard[1:])

    module = axograph.parallelize(nn.Linear(4, 4), (1, 1, 1, 1), pipeline=insert)
    module(torch.zeros(2, 4))
    assert list(module.stages) == ["capture", "normalize", "rename", *STANDARD[1:]]


def test_a_user_can_drop_and_replace_passes() -> None:
    model = nn.Linear(4, 4)
    right = model(torch.ones(2, 4)) + model.bias

    def change(standard: Sequence[Pass]) -> Sequence[Pass]:
        return [Double() if step.name == "simplify" else step for step in standard]

    module = axograph.parallelize(model, (1, 1, 1, 1), pipeline=change)
    torch.testing.assert_close(module(torch.ones(2, 4)), right)
    assert "simplify" not in module.stages
    dropped = axograph.parallelize(model, (1, 1, 1, 1), pipeline=lambda s: [p for p in s if p.name != "simplify"])
    torch.testing.assert_close(dropped(torch.ones(2, 4)) + model.bias, right)
    assert list(dropped.stages) == [
        "capture",
        "normalize",
        *REWRITES,
        "shard",
        "localize",
        "chunk",
        "split",
        "bucket",
        "schedule",
    ]


def test_a_user_can_change_the_options_of_a_pass() -> None:
    model, grid = nn.Linear(4, 4), (2, 1, 1, 1)

    def megatron(standard: Sequence[Pass]) -> Sequence[Pass]:
        return [replace(step, scheme="megatron") if step.name == "shard" else step for step in standard]  # type: ignore

    module = axograph.parallelize(model, grid, pipeline=megatron, sample_inputs=(torch.zeros(2, 4),))
    assert module.plan.scheme == "megatron"


def test_stages_are_kept_when_a_pass_of_a_module_fails() -> None:
    module = axograph.parallelize(nn.Linear(4, 4), (1, 1, 1, 1), pipeline=lambda s: (*s[:5], Fail(), *s[5:]))
    with pytest.raises(RuntimeError, match="it does not work") as failure:
        module(torch.zeros(2, 4))
    assert list(module.stages) == ["capture", "normalize", *REWRITES, "shard"]
    kept = ", ".join(module.stages)
    assert failure.value.__notes__ == [f"in the pass 'fail'; the stages before it are kept: {kept}"]
