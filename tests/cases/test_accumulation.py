"""Gradients over several calls, and who may look at them when."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from tests.cases.same import (
    DATA2,
    X2,
    X_DATA,
    XYZ,
    XZ,
    Y2,
    Z2,
    Z_DATA,
    Grid,
    assert_equal,
    assert_tells_apart,
    captured_once,
    made,
    numbers,
)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def _accumulated(model: nn.Module, rows: torch.Tensor, parts: int) -> list[torch.Tensor]:
    for part in rows.chunk(parts):
        (model(part).pow(2).mean() / parts).backward()
    return [p.grad.clone() for p in model.parameters()]


def test_gradients_accumulate_over_micro_batches() -> None:
    """A reduction put off to the last micro-batch leaves out those before it; a second step finds old sums.

    After https://github.com/pytorch/pytorch/issues/125484.
    """
    rows = numbers(12, 8)
    right = _accumulated(made(_mlp), rows, 3)
    assert_equal(right, _accumulated(made(_mlp), rows, 1), "one large batch")
    with captured_once():
        for grid in (DATA2, Z2, XZ, Z_DATA, X_DATA):
            module = axograph.parallelize(made(_mlp), grid=grid)
            for _ in range(2):
                module.zero_grad(set_to_none=False)
                assert_equal(_accumulated(module, rows, 3), right, str(grid))
    last_only = made(_mlp)
    _accumulated(last_only, rows[8:], 1)
    assert_tells_apart(right[0], last_only[0].weight.grad / 3)


def test_micro_batches_with_unequal_numbers_of_labels() -> None:
    """A mean in each micro-batch gives tokens of short ones more weight; a sum must stay a sum on every grid.

    After https://github.com/pytorch/torchtitan/issues/2206.
    """
    x, labels = numbers(6, 4, 8), torch.full((6, 4), -100)
    labels[0, 0], labels[1, 1:], labels[3], labels[5, :2] = 2, 4, 1, 7
    count = (labels != -100).sum()

    def gradients(model: nn.Module, parts: int) -> list[torch.Tensor]:
        for rows, wanted in zip(x.chunk(parts), labels.chunk(parts), strict=True):
            loss = F.cross_entropy(model(rows).flatten(0, 1), wanted.flatten(), reduction="sum")
            (loss / count).backward()
        return [p.grad for p in model.parameters()]

    right = gradients(made(lambda: nn.Linear(8, 9)), 1)
    with captured_once():
        for grid in (DATA2, Z2, X_DATA, XZ):
            module = axograph.parallelize(made(lambda: nn.Linear(8, 9)), grid=grid)
            assert_equal(gradients(module, 3), right, str(grid))
    assert_tells_apart(right[0], right[0] / 2)


@pytest.mark.parametrize("grid", [X2, Y2, Z2, DATA2, XYZ], ids=str)
def test_hooks_see_finished_gradients(grid: Grid) -> None:
    """A hook on a weight, or an early look at it, sees a gradient that is not yet reduced.

    After https://github.com/axonn-ai/axonn/issues/54.
    """
    x = numbers(4, 8)

    def seen(model: nn.Module) -> dict[str, list[torch.Tensor]]:
        calls: dict[str, list[torch.Tensor]] = {name: [] for name, _ in model.named_parameters()}
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: calls[name].append(p.grad.clone()))
        model[0].weight.register_hook(lambda gradient: 2 * gradient)
        model(x).pow(2).sum().backward()
        return calls

    ours, theirs = seen(axograph.parallelize(made(_mlp), grid=grid)), seen(made(_mlp))
    assert [len(calls) for calls in ours.values()] == [1, 1, 1, 1]
    assert_equal(ours, theirs, "gradients in hooks")
