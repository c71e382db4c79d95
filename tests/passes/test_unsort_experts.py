"""Rows sorted by expert go back to the order of their tokens, where nothing else sees the sort."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
import transformers.integrations.moe  # noqa: F401 - defines the grouped product that float64 takes
from torch import nn

import axograph
from axograph.capture import capture
from axograph.capture.program import Program
from axograph.passes.expert_products import expert_mm, expert_outer
from axograph.passes.normalize import Normalize
from axograph.passes.unsort_experts import UnsortExperts

TOKENS, FEATURES, EXPERTS, CHOSEN = 16, 8, 4, 2


def grouped_mm(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """As transformers has it: torch's own product where that takes the type."""
    if x.dtype == torch.bfloat16:
        return F.grouped_mm(x, weight, offs=ends)
    return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


class Mixture(nn.Module):
    """Each token goes to the two experts with the largest scores; the rows are sorted by expert and multiplied."""

    def __init__(self, shown: str = "") -> None:
        super().__init__()
        self.router = nn.Linear(FEATURES, EXPERTS, bias=False)
        self.weight = nn.Parameter(torch.randn(EXPERTS, FEATURES, FEATURES))
        self.bias = nn.Parameter(torch.randn(EXPERTS, FEATURES))
        self.shown = shown

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        scores, chosen = self.router(x).softmax(-1).topk(CHOSEN, dim=-1)
        expert, order = torch.sort(chosen.reshape(-1))
        ends = torch.histc(expert.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
        rows = x[order // CHOSEN]
        made = grouped_mm(rows, self.weight, ends) + self.bias[expert]
        weighted = torch.tanh(made) * scores.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0])
        out = weighted[inverse].view(TOKENS, CHOSEN, FEATURES).sum(1)
        if self.shown == "rows":
            return out, made
        if self.shown == "order":
            return out, order
        return (out + made.cumsum(0)[:TOKENS]) if self.shown == "sums" else out


def passed(model: nn.Module, dtype: torch.dtype = torch.float64) -> tuple[Program, Counter[str]]:
    """The program after the pass, and how often it has each operator."""
    x = torch.ones(TOKENS, FEATURES, dtype=dtype, requires_grad=True)
    program = UnsortExperts().run(Normalize().run(capture(model.to(dtype), (x,), differentiable="all")))
    operators = (str(node.target) for node in program.graph.nodes if node.op == "call_function")
    return program, Counter(name.partition(".")[2].partition(".")[0] for name in operators)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_sort_moves_into_the_products(dtype: torch.dtype) -> None:
    _, found = passed(Mixture(), dtype)
    assert not {"sort", "histc", "cumsum"} & found.keys()
    assert not [name for name in found if "grouped" in name]
    assert (found["expert_mm"], found["expert_outer"]) == (2, 1)
    assert found["index"] == 1, "the bias of each row's expert"


@pytest.mark.parametrize("shown", ["rows", "order", "sums"])
def test_a_sort_that_something_else_sees_stays(shown: str) -> None:
    _, found = passed(Mixture(shown))
    assert (found["sort"], found["histc"]) == (1, 1)
    assert not {"expert_mm", "expert_outer"} & found.keys()


@pytest.mark.parametrize("shown", ["", "sums"])
@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 2, 1), (2, 2, 1, 2)], ids=str)
def test_outputs_and_gradients_stay_the_same(grid: tuple[int, int, int, int], shown: str) -> None:
    torch.manual_seed(0)
    model = Mixture(shown).double()
    original = copy.deepcopy(model)
    x = torch.randn(TOKENS, FEATURES, dtype=torch.float64)
    module = axograph.parallelize(model, grid=grid)
    ours, theirs = module(x), original(x)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    ours.pow(2).sum().backward()
    theirs.pow(2).sum().backward()
    for a, b in zip(module.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_of_no_expert_give_zeros(dtype: torch.dtype) -> None:
    x, y = torch.tensor([[1.0, 2], [3, 4], [5, 6]], dtype=dtype), torch.tensor([[1.0], [10], [100]], dtype=dtype)
    x, y = (F.pad(t, (0, 4 - t.shape[1])) for t in (x, y))
    weight = torch.stack([torch.eye(4, dtype=dtype), 2 * torch.eye(4, dtype=dtype)])
    expert = torch.tensor([1, -1, 2])
    assert expert_mm(x, weight, expert).tolist() == [[2, 4, 0, 0], [0] * 4, [0] * 4]
    outer = expert_outer(x, y, expert, 2)
    assert outer[0].abs().sum() == 0
    assert outer[1, :, 0].tolist() == [1, 2, 0, 0]
