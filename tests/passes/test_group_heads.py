"""Grouped heads: copies of keys and values go where only attention uses them, and stay where something else does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from axograph.capture import capture
from axograph.passes.group_heads import GroupHeads
from axograph.passes.normalize import Normalize

aten = torch.ops.aten


class Grouped(nn.Module):
    """Four query heads over two heads of keys and values, repeated as Hugging Face models do."""

    def __init__(self, shown: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.shown = shown

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).view(2, 6, -1, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (t[:, :, None].expand(2, 2, 2, 6, 4).reshape(2, 4, 6, 4) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed + k.sum() if self.shown else mixed


def heads_of_keys(model: nn.Module) -> tuple[int, int]:
    """The heads of keys that attention takes, before and after the pass."""
    before = Normalize().run(capture(model, (torch.ones(2, 6, 16),)))
    found = []
    for program in (before, GroupHeads().run(before)):
        (attention,) = (
            n for n in program.graph.nodes if n.target is aten._scaled_dot_product_flash_attention_for_cpu.default
        )
        found.append(attention.args[1].meta["val"].shape[1])
    return found[0], found[1]


def test_attention_takes_the_heads_as_they_are() -> None:
    assert heads_of_keys(Grouped()) == (4, 2)
    program = GroupHeads().run(Normalize().run(capture(Grouped(), (torch.ones(2, 6, 16),))))
    assert not [n for n in program.graph.nodes if n.target is aten.expand.default]


def test_copies_that_something_else_uses_stay() -> None:
    assert heads_of_keys(Grouped(shown=True)) == (4, 4)


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 1, 1), (2, 2, 1, 1)], ids=str)
@pytest.mark.parametrize("shown", [False, True])
def test_outputs_and_gradients_stay_the_same(grid: tuple[int, int, int, int], shown: bool) -> None:
    torch.manual_seed(0)
    model = Grouped(shown).double()
    original = copy.deepcopy(model)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    module = axograph.parallelize(model, grid=grid)
    ours, theirs = module(x), original(x)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    ours.pow(2).sum().backward()
    theirs.pow(2).sum().backward()
    for a, b in zip(module.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=1e-12)
