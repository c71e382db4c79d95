"""Sizes that no axis divides: the last parts are padded, and nothing of it is seen from outside."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from tests.test_equality import assert_equal_training
from tests.zoo import ODD, double_everywhere


class Classifier(nn.Module):
    """A head over 13 classes with weights, smoothing and ignored labels, under hidden sizes of 10 and 14."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(13, 10)
        self.up = nn.Linear(10, 14)
        self.down = nn.Linear(14, 10)
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 13)
        self.register_buffer("weights", torch.arange(1.0, 14.0))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.table(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        logits = self.head(x)
        loss = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), self.weights, ignore_index=-100, label_smoothing=0.1
        )
        return {"loss": loss, "logits": logits, "best": logits.argmax(-1), "largest": logits.amax()}


def _ids(below: int, rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(below, (rows, length), generator=torch.Generator().manual_seed(3))
    return {"ids": ids, "labels": ids.masked_fill(torch.arange(rows * length).reshape(rows, length) % 4 == 1, -100)}


def _assert_equal(model: nn.Module, grid: tuple[int, int, int, int], inputs: dict[str, Any]) -> Any:
    with double_everywhere():
        model = model.double()
        original = copy.deepcopy(model)
        module = axograph.parallelize(model, grid=grid)
        assert_equal_training(module, original, inputs, torch.optim.AdamW, lr=1e-2, eps=1e-4)
    return module


def _uneven(module: Any) -> set[str]:
    """The axes that leave padding in some parameter or tensor."""
    grid = module.plan.grid
    return {
        axis
        for placed in module.plan.values()
        for size, axes in zip(placed.shape, (placed.m, placed.k, placed.n), strict=True)
        if size % grid.extent(axes)
        for axis in axes
    }


@pytest.mark.parametrize("grid", [(3, 1, 1, 1), (1, 4, 1, 1), (1, 1, 2, 2), (2, 3, 1, 2)], ids=str)
def test_odd_sizes_equal_the_unmodified_model(grid: tuple[int, int, int, int]) -> None:
    module = _assert_equal(Classifier(), grid, _ids(13, 5, 7))
    assert _uneven(module)
    assert module.head.weight.shape == (13, 10)
    assert module.state_dict()["table.weight"].shape == (13, 10)


@pytest.mark.parametrize("grid", [(4, 1, 1, 1), (2, 1, 1, 4)], ids=str)
def test_heads_vocabulary_and_batch_that_do_not_divide(grid: tuple[int, int, int, int]) -> None:
    _assert_equal(ODD.model(), grid, ODD.inputs(batch=5, length=7))


def test_the_vocabulary_of_gpt2_is_cut_over_eight_ranks() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 50257, bias=False)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.head(x), labels)

    inputs = {"x": torch.randn(2, 4, dtype=torch.float64), "labels": torch.tensor([50256, 7])}
    with double_everywhere():
        model = Head().double()
        original = copy.deepcopy(model)
        module = axograph.parallelize(model, grid=(8, 1, 1, 1))
        loss, expected = module(**inputs), original(**inputs)
        loss.backward()
        expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-9
    assert (module.head.weight.grad - original.head.weight.grad).abs().max() < 1e-9
    assert str(module.plan.parameters["head.weight"].simplified()) == "[50257/x, 4]"
