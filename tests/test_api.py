"""`parallelize`: every refusal in four parts, the user's own cost model, sample inputs, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import axograph
from axograph.capture.program import facts
from axograph.cost_model import RingModel
from axograph.cost_model.protocol import Collective, Compute
from axograph.errors import AxographError, CaptureError, GridError, InputError, PlanError
from axograph.grid import Grid
from axograph.torch_private import collective_op
from tests.zoo import MLP

X = torch.zeros(4, 1, 32)
ONE = (1, 1, 1, 1)


def four_parts(error: AxographError) -> None:
    """Each part says something, and all are in the text."""
    text = str(error)
    for label, part in (("asked", error.asked), ("given", error.given), ("rule", error.rule), ("try", error.remedy)):
        assert part
        assert f"\n  {label:<6} {part.splitlines()[0]}" in text


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.mean() > 0:
            return x
        return -x


REFUSALS: dict[str, tuple[type[AxographError], Callable[[], Any], dict[str, str]]] = {
    "a grid that divides nothing": (
        GridError,
        lambda: axograph.parallelize(MLP(), grid=(65, 1, 1, 1))(X),
        {"summary": "axis x cuts nothing", "asked": "x=65 y=1 z=1 data=1", "given": "up: m=4 k=32 n=64", "rule": "65"},
    ),
    "three sizes": (
        GridError,
        lambda: axograph.parallelize(MLP(), grid=(2, 1, 2)),
        {"summary": "four positive integers", "asked": "grid=(2, 1, 2)"},
    ),
    "a size of zero": (
        GridError,
        lambda: axograph.parallelize(MLP(), grid=(2, 0, 1, 1)),
        {"summary": "four positive integers", "asked": "grid=(2, 0, 1, 1)"},
    ),
    "a size that is no integer": (
        GridError,
        lambda: axograph.parallelize(MLP(), grid=(2, 1.0, 1, 1)),  # type: ignore[arg-type]
        {"summary": "four positive integers", "asked": "grid=(2, 1.0, 1, 1)"},
    ),
    "a branch on values": (
        CaptureError,
        lambda: axograph.parallelize(Branching(), ONE)(X),
        {"summary": "Branching cannot be captured", "given": "if x.mean() > 0:", "remedy": "torch.where"},
    ),
    "an unknown scheme": (
        PlanError,
        lambda: axograph.parallelize(MLP(), ONE, scheme="zero"),
        {"asked": "scheme='zero'", "given": "axonn, megatron, fsdp, ddp", "remedy": "scheme=None"},
    ),
    "inputs of a wrong shape": (
        CaptureError,
        lambda: axograph.parallelize(MLP(), ONE)(torch.zeros(4, 1, 33)),
        {"asked": "f32[4, 1, 33]", "given": "zoo.py", "rule": "accepts the inputs", "remedy": "unmodified model"},
    ),
    "no inputs": (
        CaptureError,
        lambda: axograph.parallelize(MLP(), ONE)(),
        {"asked": "the inputs (none)", "given": "missing 1 required positional argument: 'x'"},
    ),
    "a cost model without methods": (
        AxographError,
        lambda: axograph.parallelize(MLP(), ONE, cost_model=object()),  # type: ignore[arg-type]
        {"summary": "object is not a cost model", "given": "no methods", "rule": "compute_s", "remedy": "RingModel()"},
    ),
    "outputs of an unknown kind": (
        AxographError,
        lambda: axograph.parallelize(MLP(), ONE, outputs="whole"),  # type: ignore[arg-type]
        {"asked": "outputs='whole'", "rule": '"full", "sharded"'},
    ),
    "a batch dim of an unknown input": (
        InputError,
        lambda: axograph.parallelize(MLP(), ONE, batch_dims={"y": 0})(x=X),
        {"summary": "'y'", "asked": "{'y': 0}", "given": "the inputs x"},
    ),
    "a batch dim that the input has not": (
        InputError,
        lambda: axograph.parallelize(MLP(), ONE, batch_dims={"x": 3})(X),
        {"summary": "'x'", "asked": "{'x': 3}", "given": "x: f32[4, 1, 32]"},
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_has_four_parts(what: str) -> None:
    kind, call, wanted = REFUSALS[what]
    with pytest.raises(AxographError) as refusal:
        call()
    assert type(refusal.value) is kind
    four_parts(refusal.value)
    for part, text in wanted.items():
        assert text in getattr(refusal.value, part), part


def test_several_processes_without_a_process_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(GridError, match="there is no process group") as refusal:
        axograph.parallelize(MLP(), grid=(2, 1, 2, 1))
    four_parts(refusal.value)
    assert "WORLD_SIZE=4" in refusal.value.given
    assert "init_process_group" in refusal.value.remedy


# ---- the cost model


@dataclass(frozen=True)
class Dear:
    """A user's own model: all is free but collectives along one axis, or of one kind."""

    axis: str = ""
    kind: str = ""

    def compute_s(self, work: Compute) -> float:
        return 0.0

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        dear = self.axis in collective.axes or collective.kind == self.kind
        return collective.size_bytes * (1.0 if dear else 1e-9)

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


def collectives(module: Any) -> set[str]:
    program = module.stages["split"].program
    nodes = [*program.graph.nodes, *program.backward.graph.nodes]
    found = {str(node.target) for node in nodes if node.op == "call_function"}
    return {name.split(".")[1] for name in found if name.startswith("_c10d_functional.")} - {"wait_tensor"}


def test_a_users_own_cost_model_decides() -> None:
    def planned(model: Any) -> Any:
        return axograph.parallelize(MLP(), (2, 1, 1, 1), cost_model=model, sample_inputs=(X,))

    without_reduce, without_gather = planned(Dear(kind="all_reduce")), planned(Dear(kind="all_gather"))
    assert str(without_reduce.plan) != str(without_gather.plan)
    assert "all_gather_into_tensor" not in collectives(without_gather)
    assert without_gather.plan.cost_s < 1.0
    assert planned(Dear(axis="x")).plan.cost_s > 1.0


def test_the_default_cost_model_is_that_of_rings() -> None:
    default = axograph.parallelize(MLP(), (2, 1, 1, 1), sample_inputs=(X,))
    stated = axograph.parallelize(MLP(), (2, 1, 1, 1), sample_inputs=(X,), cost_model=RingModel())
    assert str(default.plan) == str(stated.plan)


def test_without_overlap_each_collective_is_waited_for_at_once() -> None:
    """With overlap at least one is not: on x and z there is something to compute meanwhile."""

    def at_once(overlap: bool) -> list[bool]:
        module = axograph.parallelize(MLP(), (2, 1, 2, 1), scheme="axonn", overlap=overlap, sample_inputs=(X,))
        program = list(module.stages.values())[-1].program
        nodes = [*program.graph.nodes, *program.backward.graph.nodes]
        following = pairwise(nodes)
        return [after.target is collective_op("wait_tensor") for node, after in following if facts(node).collective]

    assert all(at_once(overlap=False))
    assert not all(at_once(overlap=True))


# ---- inputs


@pytest.mark.parametrize("inputs", [(X,), {"x": X}, {"x": X.to("meta")}], ids=["tuple", "mapping", "meta"])
def test_sample_inputs_compile_at_once(inputs: Any) -> None:
    module = axograph.parallelize(MLP(), ONE, sample_inputs=inputs)
    assert list(module.plan) == ["up", "down"]
    assert list(module.stages)[-1] == "schedule"
    assert module.calls.item() == 0, "nothing is run"


def test_the_call_after_sample_inputs_of_its_kind_compiles_nothing() -> None:
    made: list[str] = []
    module = axograph.parallelize(MLP(), ONE, sample_inputs=(X,), observers=(lambda stage: made.append(stage.name),))
    before = len(made)
    module(X)
    assert len(made) == before > 0


def placement_of_input(module: Any, index: int) -> str:
    program = module.stages["shard"].program
    return next(str(i.placement.simplified()) for i in program.inputs if (i.kind, i.target) == ("user", index))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * scale  # type: ignore[no-any-return]


def test_the_batch_dim_is_inferred_and_can_be_stated() -> None:
    x, scale = torch.ones(4, 4), torch.ones(4)
    options: dict[str, Any] = {"scheme": "ddp", "sample_inputs": {"x": x, "scale": scale}}
    inferred = axograph.parallelize(Scaled(), (1, 1, 1, 2), **options)
    assert placement_of_input(inferred, 0) == "[4/data, 4]"
    stated = axograph.parallelize(Scaled(), (1, 1, 1, 2), batch_dims={"scale": None}, **options)
    assert placement_of_input(stated, 0) == "[4/data, 4]"
    assert placement_of_input(stated, 1) == "[4]"
    model = Scaled()
    expected = model(x, scale)
    assert torch.allclose(axograph.parallelize(model, (1, 1, 1, 2), batch_dims={"scale": None})(x, scale), expected)


# ---- what it says


def test_the_virtual_grid_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="axograph"):
        module = axograph.parallelize(MLP(), (2, 1, 1, 1))
        module(X)
        module(X)
    said = [record for record in caplog.records if record.name == "axograph"]
    assert [record.levelname for record in said] == ["WARNING"]
    expected = "no process group: the 2 ranks of the grid (x=2 y=1 z=1 data=1) run in this process, on the virtual grid"
    assert said[0].getMessage() == expected


def test_one_rank_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="axograph"):
        axograph.parallelize(MLP(), ONE)(X)
    assert [record for record in caplog.records if record.name == "axograph"] == []


def test_a_grid_may_be_given_as_such_or_as_any_sequence() -> None:
    for grid in (Grid(1, 1, 1, 1), [1, 1, 1, 1], (1, 1, 1, 1)):
        assert axograph.parallelize(nn.Linear(4, 4), grid, sample_inputs=(torch.zeros(2, 4),)).plan.grid == Grid(*ONE)


def test_a_model_on_the_meta_device_is_planned() -> None:
    with torch.device("meta"):
        model, x = MLP(), torch.zeros(4, 1, 32)
    module = axograph.parallelize(model, (2, 1, 1, 1), sample_inputs=(x,))
    assert list(module.plan) == ["up", "down"]
    assert module.up.weight.is_meta
