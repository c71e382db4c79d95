"""Sizes that the grid does not divide: features, rows, lengths, and a batch of one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from tests.cases.same import (
    DATA2,
    X2,
    X3,
    X4,
    XY,
    XYZ,
    Y2,
    Y3,
    Y4,
    Z2,
    Z4,
    Grid,
    assert_equal,
    assert_same,
    assert_tells_apart,
    ids,
    made,
    numbers,
)


def _normed(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.LayerNorm(hidden), nn.Linear(hidden, outputs))


@pytest.mark.parametrize("sizes", [(10, 7, 5), (16, 18, 3), (5, 5, 5), (9, 2, 9), (1, 3, 1), (16, 10, 16)], ids=str)
def test_features_that_do_not_divide(sizes: tuple[int, int, int]) -> None:
    """Uneven pieces meet a step that takes them for equal ones, and a norm averages over the padding.

    Equal to one process, or refused. After https://github.com/pytorch/pytorch/issues/141335.
    """
    grids = [X2, X4, Y4, XY, Z2, Z4, X3, Y3, XYZ]
    x = numbers(4, 3, sizes[0])
    assert_same(partial(_normed, *sizes), (x,), grids=grids, steps=1, may_refuse="divisor")

    padded = F.pad(torch.arange(6.0), (0, 2)).chunk(4)
    assert_tells_apart(torch.arange(6.0).mean(), torch.cat([part[1:] for part in padded]).mean())


class Rows(nn.Module):
    """A layer, and everything that depends on the number of rows or on their order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.layer(x)
        return y, y.mean(0), y.softmax(-1), y.std(), torch.tensor(y.shape[0]), y.flatten(), y.sort(-1)[0]


@pytest.mark.parametrize("rows", [5, 3, 1, 4])
def test_rows_that_do_not_divide(rows: int) -> None:
    """Five rows over four ranks come back as eight.

    Equal to one process, or refused. After https://github.com/pytorch/pytorch/issues/103306.
    """
    x = numbers(rows, 8)
    assert_same(Rows, (x,), grids=[X4, X2])
    for grid in (Z2, Z4, DATA2):
        assert_same(Rows, (x,), grids=[grid], may_refuse="batch" if rows % (grid[2] * grid[3]) else "")

    y = made(Rows)(numbers(5, 8))[0]
    padded = F.pad(y, (0, 1, 0, 3))
    assert_tells_apart(y.mean(0), padded.mean(0)[:7])
    assert_tells_apart(y.softmax(-1), padded.softmax(-1)[:5, :7])


class Residual(nn.Module):
    """A norm and two layers around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _sequence_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(30, 8), Residual(), Residual(), nn.Linear(8, 30))


@pytest.mark.parametrize("length", [7, 1, 5, 8])
def test_lengths_that_do_not_divide(length: int) -> None:
    """Shapes around embedding and norm go wrong with an odd length, or with one token.

    After https://github.com/pytorch/torchtitan/issues/1306.
    """
    assert_same(_sequence_model, (ids(2, length, below=30),), grids=[X2, X4, Y2, XY, Z2])


def test_one_module_on_several_lengths() -> None:
    """The program of the first length is used for all.

    After https://github.com/pytorch/torchtitan/issues/1306.
    """
    module, model = axograph.parallelize(made(_sequence_model), grid=X2), made(_sequence_model)
    for length in (8, 7, 1, 3):
        tokens = ids(2, length, below=30)
        assert_equal(module(tokens), model(tokens), f"length {length}")


class ByBatch(nn.Module):
    """A parameter expanded to the batch, whose size is also divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.position = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        return self.layer(x + self.position.expand(batch, -1, -1)).reshape(batch, -1) / batch


def test_a_batch_of_one_first() -> None:
    """A size of 1 is frozen into the program, or broadcast.

    After https://github.com/pytorch/pytorch/issues/151582.
    """
    one, three = numbers(1, 4, 8), numbers(3, 4, 8)
    model = made(ByBatch)
    for module in assert_same(ByBatch, (one,), grids=[X2, Y2, XY]):
        assert_equal(module(three), model(three), "three rows")
    assert_same(ByBatch, (one,), grids=[Z2, DATA2], may_refuse="batch")
    assert_tells_apart(model(three), model(three) * 3)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def _losses(model: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for batch in rows.split(8):
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("grid", [DATA2, Z2, (1, 1, 1, 4), (1, 1, 2, 2), (2, 1, 1, 2)], ids=str)
def test_a_smaller_last_batch(grid: Grid) -> None:
    """The ranks' shares of the last batch are averaged as if they were equal, or a rank has none and all hang.

    After https://github.com/Lightning-AI/pytorch-lightning/issues/20404.
    """
    rows = numbers(19, 8)
    assert_equal(_losses(axograph.parallelize(made(_mlp), grid=grid), rows), _losses(made(_mlp), rows), "losses")

    last = made(_mlp)(rows[16:]).pow(2)
    assert_tells_apart(last.mean(), (last[:2].mean() + last[2:].mean()) / 2)
