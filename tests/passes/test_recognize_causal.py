"""Causal masks become the flag; any other mask, and one that depends on the inputs, stays."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from axograph.capture import capture
from axograph.passes.normalize import Normalize
from axograph.passes.recognize_causal import RecognizeCausal

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Masked(nn.Module):
    """Attention with a mask built from positions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, 6, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        at = torch.arange(6, device=x.device)
        keep = at[None, :] <= at[:, None]
        if self.kind == "window":
            keep = keep & (at[None, :] > at[:, None] - 3)
        if self.kind == "input":
            keep = keep & (x[:, None, None, :, 0] < 100)
        mask = torch.where(keep, 0.0, -torch.inf).to(x.dtype)
        mask = mask.expand(2, 1, 6, 6) if mask.dim() == 2 else mask
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize(("kind", "flag"), [("causal", True), ("window", False), ("input", False)])
def test_only_the_causal_mask_of_constants_becomes_the_flag(kind: str, flag: bool) -> None:
    program = RecognizeCausal().run(Normalize().run(capture(Masked(kind), (torch.ones(2, 6, 8),))))
    (attention,) = (node for node in program.graph.nodes if node.target is ATTENTION)
    assert (len(attention.args) > 4 and attention.args[4] is True) == flag
    assert ("attn_mask" in attention.kwargs) != flag


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 2, 1)], ids=str)
@pytest.mark.parametrize("kind", ["causal", "window", "input"])
def test_outputs_and_gradients_stay_the_same(kind: str, grid: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    model = Masked(kind).double()
    original = copy.deepcopy(model)
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    module = axograph.parallelize(model, grid=grid)
    ours, theirs = module(x), original(x)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    ours.pow(2).sum().backward()
    theirs.pow(2).sum().backward()
    torch.testing.assert_close(module.qkv.weight.grad, original.qkv.weight.grad, atol=1e-12, rtol=1e-12)
