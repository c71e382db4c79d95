"""Collectives that run while ranks compute: the same numbers, the same collectives, the same order everywhere."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import axograph
from tests.cases.overlapping import Branches, Tied, apart, assert_safe, halves, issued, watched
from tests.cases.same import (
    DATA2,
    X2,
    X_DATA,
    XY,
    XZ,
    Y2,
    YZ,
    Z2,
    Grid,
    assert_equal,
    assert_same,
    assert_tells_apart,
    captured_once,
    ids,
    made,
    numbers,
)


@pytest.mark.parametrize("grid", [YZ, X_DATA], ids=str)
def test_overlap_changes_no_bit_of_training(grid: Grid) -> None:
    """With overlap on, another loss is logged, and tied weights and hooks see sums that are not finished.

    Chunks are pinned: they add up in another order.

    After https://github.com/axonn-ai/distrib-dl-tutorial/issues/17 and https://github.com/axonn-ai/axonn/issues/54.
    """
    inputs = (ids(4, 6, below=24), ids(4, 6, below=23))
    with captured_once():
        on, off = (axograph.parallelize(made(Tied), grid, overlap=overlap, chunks=1) for overlap in (True, False))
        seen, other = watched(on, inputs, 20), watched(off, inputs, 20)
    assert str(halves(on)) != str(halves(off))
    assert len(seen) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(seen, other, strict=True))
    assert_equal(seen, watched(made(Tied), inputs, 20), "the unmodified model")


@pytest.mark.parametrize("grid", [X_DATA, XY, YZ], ids=str)
def test_overlap_moves_collectives_and_neither_loses_nor_doubles_one(grid: Grid) -> None:
    """A pass moves a collective past another on some ranks; a wait is lost; a buffer is given away or seen too early.

    After https://github.com/NVIDIA/Megatron-LM/issues/2218, https://github.com/meta-pytorch/torchcomms/issues/3095,
    https://github.com/karpathy/nanochat/issues/843 and https://github.com/pytorch/pytorch/issues/152534.
    """
    tokens = ids(4, 3, below=13)
    with captured_once():
        options = {"chunks": 1, "pipeline": apart}
        on, off = (axograph.parallelize(made(Branches), grid, overlap=overlap, **options) for overlap in (True, False))
        assert [type(module(tokens)) for module in (on, off)] == [torch.Tensor, torch.Tensor]
    assert str(halves(on)) != str(halves(off))
    assert Counter(issued(on)) == Counter(issued(off))
    assert issued(on)
    for module in (on, off):
        for graph in halves(module):
            assert_safe(graph)


class Block(nn.Module):
    """A block with a residual connection and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return x + factor * self.down(torch.tanh(self.up(self.norm(x))))


class Recomputed(nn.Module):
    """Two blocks that are computed again in backward, or not, and two outputs."""

    def __init__(self, again: bool = True) -> None:
        super().__init__()
        self.again = again
        self.first, self.second, self.head = Block(), Block(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.again:
            return self.head(self.first(x, 2.0)), self.second(x)
        first = checkpoint(self.first, x, 2.0, use_reentrant=False)
        return self.head(first), checkpoint(self.second, x, use_reentrant=False)


def test_blocks_that_are_computed_again_with_their_collectives() -> None:
    """What is computed again has other shapes than what was saved; ranks run the collectives in it in another order.

    After https://github.com/meta-pytorch/torchtune/issues/2451.
    """
    x = numbers(4, 5, 8)
    modules = assert_same(Recomputed, (x,), grids=[X2, Y2, DATA2, XZ], loss=lambda o: o[0].square().sum() + o[1].sum())
    modules += assert_same(Recomputed, (x,), grids=[XY, Z2], loss=lambda o: o[1].square().mean())
    for module in modules:
        for graph in halves(module):
            assert_safe(graph)
    first, second = module(x)
    module.zero_grad()
    first.sum().backward(retain_graph=True)
    second.sum().backward()
    plain = made(lambda: Recomputed(again=False))
    sum(output.sum() for output in plain(x)).backward()
    ours, theirs = ({n: p.grad for n, p in m.named_parameters()} for m in (module, plain))
    assert_equal(ours, theirs, "gradients of one output after the other")
    only = made(Recomputed)
    only(x)[0].sum().backward()
    assert_tells_apart(theirs["head.weight"], 2 * only.head.weight.grad)
