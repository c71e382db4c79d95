"""`split`: which half an operator is in, what is saved, and what is made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import axograph
from axograph.capture.listing import listing
from axograph.capture.program import Program
from axograph.capture.trace import capture
from axograph.cost_model import Collective, Compute, RingModel
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.split import Split


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8, bias=False)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x).view(2, 2, 8))).sum()  # type: ignore[no-any-return]


def text(program: Program) -> list[str]:
    """One half, without source lines and the types of inputs."""
    lines = listing(replace(program, backward=None)).splitlines()
    return [line for line in lines if not line.startswith("#")]


def compiled(model: nn.Module, grid: tuple[int, int, int, int], *inputs: torch.Tensor, **options: Any) -> Program:
    module = axograph.parallelize(model, grid, sample_inputs=inputs, **options)
    return module.stages["split"].program


def kinds(program: Program) -> list[tuple[str, str | int]]:
    return [(declared.kind, declared.target) for declared in program.inputs]


def test_forward_makes_outputs_and_what_backward_needs() -> None:
    program = compiled(Net(), (1, 1, 1, 1), torch.ones(4, 4))
    assert text(program)[:3] == [
        "parameter_up_weight: f32[8, 4] = input parameter up.weight",
        "parameter_down_weight: f32[4, 8] = input parameter down.weight",
        "user_0: f32[4, 4] = input user 0",
    ]
    assert text(program)[-2:] == ["return sum_1 -> user 0", "return relu -> saved 0"]
    assert program.backward is not None
    assert text(program.backward) == [
        "parameter_down_weight: f32[4, 8] = input parameter down.weight",
        "user_0: f32[4, 4] = input user 0",
        "tangent_0: f32[] = input tangent 0",
        "relu: f32[2, 2, 8] = input saved 0",
        "expand: f32[2, 2, 4] = aten.expand(tangent_0, [2, 2, 4])",
        "reshape_3: f32[4, 4] = aten.reshape(expand, [4, 4])",
        "permute_2: f32[4, 4] = aten.permute(reshape_3, [1, 0])",
        "reshape_1: f32[4, 8] = aten.reshape(relu, [4, 8])",
        "mm_2: f32[4, 8] = aten.mm(permute_2, reshape_1)",
        "mm_3: f32[4, 8] = aten.mm(reshape_3, parameter_down_weight)",
        "reshape_4: f32[2, 2, 8] = aten.reshape(mm_3, [2, 2, 8])",
        "threshold_backward: f32[2, 2, 8] = aten.threshold_backward(reshape_4, relu, 0)",
        "reshape_5: f32[4, 8] = aten.reshape(threshold_backward, [4, 8])",
        "permute_6: f32[8, 4] = aten.permute(reshape_5, [1, 0])",
        "mm_4: f32[8, 4] = aten.mm(permute_6, user_0)",
        "return mm_4 -> gradient up.weight",
        "return mm_2 -> gradient down.weight",
    ]


def test_views_are_made_again_and_not_saved() -> None:
    program = compiled(Net(), (1, 1, 1, 1), torch.ones(4, 4))
    saved = [
        result for result, declared in zip(program.results(), program.outputs, strict=True) if declared.kind == "saved"
    ]
    assert [str(node.target) for node in saved if node is not None] == ["aten.relu.default"]


@dataclass(frozen=True)
class Priced:
    """A second for each byte communicated, and so many for each byte held."""

    held_s: float

    def compute_s(self, work: Compute) -> float:
        return 0.0

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return collective.size_bytes

    def hold_s(self, size_bytes: float) -> float:
        return self.held_s * size_bytes


def gathers_and_saved(held_s: float) -> tuple[list[str], list[str]]:
    """The gathers of both halves by name, and the lines of what is saved."""
    program = compiled(Net(), (1, 1, 2, 1), torch.ones(4, 4), scheme="fsdp", cost_model=Priced(held_s))
    assert program.backward is not None
    gathers = [line for half in (program, program.backward) for line in text(half) if "all_gather_into_tensor(" in line]
    return [line.partition(":")[0] for line in gathers], [
        line for line in text(program.backward) if "input saved" in line
    ]


def test_gathered_weights_are_gathered_again_and_not_saved() -> None:
    gathers, saved = gathers_and_saved(held_s=2.0)
    assert gathers == ["all_gather_into_tensor", "all_gather_into_tensor_1", "all_gather_into_tensor_1"]
    assert saved == ["relu: f32[2/z, 2, 8] -> f32[1, 2, 8] = input saved 0"]


def test_gathered_weights_are_saved_where_that_is_cheaper() -> None:
    gathers, saved = gathers_and_saved(held_s=0.5)
    assert gathers == ["all_gather_into_tensor", "all_gather_into_tensor_1"]
    assert len(saved) == 2
    assert "f32[4, 8]" in saved[1]


def test_without_gradients_there_is_no_backward() -> None:
    with torch.no_grad():
        program = compiled(Net(), (1, 1, 1, 1), torch.ones(4, 4))
    assert program.backward is None
    assert {declared.kind for declared in program.outputs} == {"user"}
    frozen = compiled(Net().requires_grad_(False), (1, 1, 1, 1), torch.ones(4, 4))
    assert frozen.backward is None


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight * self.scale).sum()
        self.scale = self.scale + 1
        return y


def test_buffers_are_saved_as_they_were() -> None:
    program = compiled(Scaled(), (1, 1, 1, 1), torch.ones(2, 4))
    assert program.backward is not None
    assert "return buffer_scale -> saved 0" in text(program)
    assert "buffer_scale: f32[] = input saved 0" in text(program.backward)
    assert not any(kind == "buffer" for kind, _ in kinds(program.backward))


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 1, 1)])
def test_two_calls_before_their_backward_each_use_the_buffer_that_they_saw(grid: tuple[int, int, int, int]) -> None:
    module = axograph.parallelize(Scaled(), grid, observers=())
    x = torch.ones(2, 4)
    (module(x) + module(x)).backward()
    assert module.weight.grad.tolist() == [2 * 2.0 + 2 * 3.0] * 4
    assert module.scale.item() == 4.0


def test_the_two_halves_compute_what_the_joint_program_does() -> None:
    model, x = Net(), torch.randn(4, 4)
    joint = Normalize().run(capture(model, (x,)))
    first = Split().run(joint)
    second = first.backward
    assert second is not None
    known: dict[Any, torch.Tensor] = {("user", 0): x, ("tangent", 0): torch.tensor(2.0)}
    known |= {("parameter", name): parameter.detach() for name, parameter in model.named_parameters()}
    right = joint.graph_module(*(known[key] for key in kinds(joint)))
    ahead = first.graph_module(*(known[key] for key in kinds(first)))
    known |= {(o.kind, o.target): made for o, made in zip(first.outputs, ahead, strict=True) if o.kind == "saved"}
    behind = second.graph_module(*(known[key] for key in kinds(second)))
    made = {(o.kind, o.target): v for o, v in zip((*first.outputs, *second.outputs), (*ahead, *behind), strict=True)}
    for declared, expected in zip(joint.outputs, right, strict=True):
        assert torch.equal(made[declared.kind, declared.target], expected)


def saved_of(run: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    """What is saved of a function of a `[4, 6]` tensor that requires gradients."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return run(x)

    joint = Normalize().run(capture(Model(), (torch.randn(4, 6, requires_grad=True),)))
    program = Split().run(joint)
    pairs = zip(program.results(), program.outputs, strict=True)
    return [str(node.target) for node, declared in pairs if node is not None and declared.kind == "saved"]


@pytest.mark.parametrize(
    ("view", "saved"),
    [
        (lambda y: y.t().exp(), ["aten.exp.default"]),
        (lambda y: y.t() * y.t(), ["aten.relu.default"]),
        (lambda y: y[1:3] * y[1:3], ["aten.relu.default"]),
        (lambda y: y.reshape(2, 12) * y.reshape(2, 12), ["aten.relu.default"]),
        (lambda y: y.sum(0).expand(3, 6) * y.sum(0).expand(3, 6), ["aten.relu.default", "aten.sum.dim_IntList"]),
        (lambda y: y.t().reshape(2, 12) * 2 * y.t().reshape(2, 12), ["aten.relu.default", "aten.reshape.default"]),
    ],
)
def test_views_are_saved_as_what_they_are_views_of(view: Callable[..., Any], saved: list[str]) -> None:
    found = saved_of(lambda x: view(x.relu()))
    assert found[0] == "aten.relu.default"
    assert set(found) - {"aten.mul.Tensor"} == {"aten.relu.default", *saved}


class CostlyScatters(RingModel):
    """Reduce-scatters that cost as much as gloo's: all-reduce and slice is as cheap."""

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return super().collective_s(collective, grid) * (4 if collective.kind == "reduce_scatter" else 1)


def test_nothing_is_made_twice_where_gradients_are_sliced_at_the_ranks_coordinate() -> None:
    program = compiled(
        Net(), (1, 1, 2, 1), torch.rand(4, 4), scheme="fsdp", cost_model=CostlyScatters(),
        pipeline=lambda passes: passes[:-1],
    )  # fmt: skip
    assert program.backward is not None
    behind = program.backward.graph
    reduced = [n.args[0] for n in behind.nodes if "all_reduce" in str(n.target)]
    assert len(reduced) == len(set(reduced)) == 2
    assert all(node.users for node in behind.nodes if node.op == "call_function")
