"""Losses in terms of operators that have rules: what is averaged over a cut batch is summed, counted and divided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_MEAN, _NONE = 1, 0


def nll_backward(
    grad: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient of a negative log likelihood: one element of each row is not zero, and is set once.

    `scores` is [n, classes] or [classes], or [n, classes, *positions] in two dims; `target` has no class dim.
    """
    dim = 0 if scores.dim() == 1 else 1
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0)
    value = -grad / total_weight if reduction == _MEAN else -grad
    if weight is not None:
        value = value * weight[chosen]
    value = torch.where(kept, value, torch.zeros((), dtype=value.dtype, device=value.device))
    return torch.zeros_like(scores).scatter(dim, chosen.unsqueeze(dim), value.unsqueeze(dim).to(scores.dtype))


LOSSES: dict[Any, Callable[..., Any]] = {
    aten.nll_loss_backward.default: nll_backward,
    aten.nll_loss2d_backward.default: nll_backward,
}
