"""Dropout: on in training and off in evaluation, one mask for the whole grid, the same when a call is made again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import axograph
from tests.cases.same import (
    DATA2,
    X2,
    XY,
    Grid,
    assert_equal,
    assert_tells_apart,
    captured_once,
    made,
    mean_square,
    numbers,
)


class Normed(nn.Module):
    """A functional dropout that is told the module's own flag."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.dropout(self.norm(self.up(x)), 0.5, training=self.training))


def test_a_flag_read_in_forward_is_that_of_the_call() -> None:
    """The trace keeps the flag of its first call, so that evaluation still drops.

    After https://github.com/pytorch/pytorch/issues/68190.
    """
    x = numbers(8, 8)
    module, original = axograph.parallelize(made(Normed), grid=X2, sample_inputs=(x,)), made(Normed).eval()
    module.eval()
    assert_equal(module(x), original(x), "evaluation")
    module.train()
    assert_tells_apart(module(x), original(x))
    assert_tells_apart(module(x), module(x))


class Twice(nn.Module):
    """Ones dropped over cut features, then over what all ranks of a group have."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)
        self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = self.first(torch.ones_like(self.up(x)) + 0 * self.up(x))
        return self.second(self.down(kept)), kept


def test_masks_differ_between_ranks_that_cut_and_agree_between_those_that_copy() -> None:
    """One seed for all ranks repeats the mask on each part; a seed for each makes copies drift apart.

    After https://github.com/awslabs/slapo/issues/21.
    """
    x = numbers(16, 8)
    torch.manual_seed(5)
    module = axograph.parallelize(made(Twice), grid=XY)
    with torch.no_grad():
        out, kept = module(x)
        expected = module.down(kept) * 2
    chosen, dropped = kept != 0, out == 0
    assert 0.4 < chosen.double().mean() < 0.6
    left, right = chosen.chunk(2, -1)
    assert (left == right).double().mean() < 0.6
    assert 0.3 < dropped.double().mean() < 0.7
    assert_equal(out[~dropped], expected[~dropped], "what the second mask keeps")


class Rows(nn.Module):
    """Ones dropped over cut rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(64, 64), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.ones_like(x) + 0 * self.layer(x))


@pytest.mark.parametrize("grid", [DATA2, (1, 2, 2, 2)], ids=str)
def test_masks_differ_between_parts_of_the_batch_and_between_steps(grid: Grid) -> None:
    """A switch for "one seed" or "one for each device" cannot say what a grid needs: data groups had one mask.

    After https://github.com/tenstorrent/tt-metal/issues/55947.
    """
    x = numbers(8, 64)
    torch.manual_seed(5)
    with captured_once(), torch.no_grad():
        module = axograph.parallelize(made(Rows), grid=grid)
        first, second = module(x) != 0, module(x) != 0
    top, bottom = first.chunk(2, 0)
    assert (top == bottom).double().mean() < 0.6
    assert (first == second).double().mean() < 0.6


class Checkpointed(nn.Module):
    """Layers with dropout, each in a checkpointed call if asked."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 8), nn.Dropout(0.2))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.again else layer(x))
        return x


def _trained(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    outputs = module(x)
    mean_square(outputs).backward()
    return [outputs.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def test_what_is_computed_again_is_dropped_as_before() -> None:
    """What is recomputed has new masks, so that gradients belong to another sample.

    After https://github.com/allenai/OLMo-core/issues/828.
    """
    x = numbers(8, 8)
    modules = [axograph.parallelize(made(lambda a=a: Checkpointed(again=a)), grid=XY) for a in (True, False)]
    again, saved = (_trained(module, x) for module in modules)
    assert_equal(again, saved, "checkpointed and not", 1e-10)
    draws = [_draws(module) for module in modules]
    assert draws == [4, 0]
    with torch.random.fork_rng():
        modules[1].zero_grad()
        assert_equal(_trained(modules[1], x), again, "the same seed again", 1e-10)
        assert_tells_apart(modules[1](x), modules[1](x))


def _draws(module: axograph.ParallelModule) -> int:
    """How many masks the backward half makes."""
    behind = module.stages["schedule"].program.backward
    assert behind is not None
    return sum("axograph.random" in str(node.target) for node in behind.graph.nodes)
