"""`recompute-pointwise`: what is saved no longer, what stays saved, and that the numbers are the model's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import axograph
from axograph.capture.program import Program, facts
from axograph.passes.recompute_pointwise import RecomputePointwise
from axograph.pipeline import Pass
from tests.zoo import BY_NAME, double_everywhere, loss_of


def with_it(passes: Sequence[Pass]) -> Sequence[Pass]:
    return [*passes, RecomputePointwise()]


class Net(nn.Module):
    """A matmul, pointwise operators, a matmul, a loss over classes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8, bias=False)
        self.down = nn.Linear(8, 16, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        return nn.functional.cross_entropy(self.down(up * (torch.tanh(up * 0.5) + 1.0)), y)


def saved(program: Program) -> list[tuple[str, int]]:
    pairs = zip(program.results(), program.outputs, strict=True)
    return [(n.name, n.meta["val"].numel()) for n, d in pairs if n is not None and d.kind == "saved"]


def collectives(program: Program | None) -> list[tuple[str, Any]]:
    assert program is not None
    return [(n.name, facts(n).collective) for n in program.graph.nodes if "_c10d" in str(n.target)]


def test_parts_of_a_fused_chain_are_made_again_and_what_a_matmul_reads_stays_saved() -> None:
    inputs = torch.randn(6, 4), torch.randint(16, (6,))
    module = axograph.parallelize(Net(), grid=(1, 1, 1, 1), sample_inputs=inputs, pipeline=with_it)
    before, after = (module.stages[name].program for name in ("split", "recompute-pointwise"))
    large = [(name, size) for name, size in saved(before) if size > 6]
    assert large == [("mm", 48), ("tanh", 48), ("add", 48), ("mul_1", 48), ("_log_softmax", 96)]
    large = [(name, size) for name, size in saved(after) if size > 6]
    assert large == [("mm", 48), ("mul_1", 48), ("mm_1", 96)]
    assert {name for name, _ in saved(after)} >= {"amax", "sum_1"}
    again = [n.target for n in after.backward.graph.nodes if n.name.startswith(("tanh", "exp"))]  # type: ignore[union-attr]
    assert torch.ops.aten.tanh.default in again


def test_numbers_are_those_of_the_model() -> None:
    case = BY_NAME["gpt2"]
    with double_everywhere():
        model, inputs = case.model().double(), case.inputs()
        original = copy.deepcopy(model)
        module: Any = axograph.parallelize(model, grid=(2, 1, 2, 1), pipeline=with_it)
        for each in (original, module):
            loss_of(each(**inputs)).backward()  # type: ignore[no-untyped-call]
    found = dict(module.named_parameters())
    for key, parameter in original.named_parameters():
        torch.testing.assert_close(found[key].grad, parameter.grad, rtol=1e-9, atol=1e-9)
    before, after = (module.stages[name].program for name in ("schedule", "recompute-pointwise"))
    assert len(saved(after)) < len(saved(before))
    assert collectives(after) == collectives(before)
    assert collectives(after.backward) == collectives(before.backward)
