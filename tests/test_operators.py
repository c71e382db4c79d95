"""Operators that language models seldom use, in whole models: equal to the unmodified one to 1e-9."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from tests.test_equality import assert_equal_gradients, largest_difference

GRID = (2, 1, 1, 2)
"""Features and batch are cut."""
BATCH, LENGTH, FEATURES, CLASSES = 4, 8, 8, 16


class Around(nn.Module):
    """A function of features `[batch, length, features]` between two linear layers; its floats are summed up."""

    def __init__(self, function: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        super().__init__()
        self.function = function
        self.up = nn.Linear(FEATURES, FEATURES)
        self.down = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        made = self.function(self.down(self.up(x).tanh()))
        loss = torch.zeros((), dtype=x.dtype)
        for i, result in enumerate(made):
            if result.is_floating_point():
                waves = torch.arange(result.numel(), dtype=x.dtype).cos().reshape(result.shape)
                loss = loss + (i + 1) * (result * waves).sum()
        return loss, [result.detach() for result in made]


class Losses(nn.Module):
    """A head over a vocabulary, and losses over it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("weight", torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        logits = self.head(x)
        rows, targets = logits.flatten(0, 1), labels.flatten()
        likely = F.one_hot(labels.clamp(min=0), CLASSES).to(x.dtype) * 0.9 + 0.1 / CLASSES
        losses = [
            F.cross_entropy(rows, targets, ignore_index=-1, label_smoothing=0.1),
            F.cross_entropy(logits.mT, labels, ignore_index=-1, weight=self.weight, label_smoothing=0.2),
            F.binary_cross_entropy_with_logits(logits, likely, pos_weight=self.weight),
            F.binary_cross_entropy(logits.sigmoid(), likely),
            F.kl_div(logits.log_softmax(-1), likely, reduction="batchmean"),
        ]
        return torch.stack(losses).sum(), [loss.detach() for loss in losses]


class InPlace(nn.Module):
    """Updates in place, scalars, and parameters without dims."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.table = nn.Parameter(torch.randn(1, 1, FEATURES, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        self.seen += x.shape[0]
        hidden = self.layer(x).clone()
        self.largest.copy_(torch.maximum(self.largest, hidden.detach().abs().max()))
        hidden[:, 2] = hidden[:, 3].clone() * self.scale
        hidden[:, 1:4].add_(self.table)
        hidden[..., 0].mul_(2.0)
        hidden[hidden > 1.0] = 0.5
        hidden.relu_()
        hidden = torch.cat([self.table.expand(x.shape[0], -1, -1), hidden], dim=1)  # as a class token
        return hidden.pow(2).mean() * self.scale, [hidden.detach()]


def _ordered(h: torch.Tensor) -> list[torch.Tensor]:
    """Over positions and over features, one of which is cut."""
    return [h.argmax(1), *h.topk(3, 1), *h.sort(2), h.cumsum(1), h.logcumsumexp(2)]


def _complex(h: torch.Tensor) -> list[torch.Tensor]:
    """Rotary tables of complex numbers, as Llama's first code had them."""
    angles = torch.outer(torch.arange(LENGTH, dtype=h.dtype), 10.0 ** -torch.arange(4, dtype=h.dtype))
    table = torch.polar(torch.ones_like(angles), angles)
    turned = torch.view_as_real(torch.view_as_complex(h.unflatten(-1, (-1, 2))) * table).flatten(-2)
    return [turned, torch.fft.rfft(h, dim=1).abs()]


def _strided(h: torch.Tensor) -> list[torch.Tensor]:
    """Windows that overlap, of a tensor and of a transposed one."""
    windows = h.as_strided((BATCH, 3, 4, FEATURES), (LENGTH * FEATURES, 2 * FEATURES, FEATURES, 1))
    turned = h.mT.contiguous().as_strided((BATCH, FEATURES, LENGTH), (LENGTH * FEATURES, 1, FEATURES))
    return [windows, turned, h.unfold(1, 4, 2)]


def _without_rules(h: torch.Tensor) -> list[torch.Tensor]:
    """Operators that have no rule."""
    return [torch.pdist(h[:, 0]), torch.pdist(h[0].mT), h.masked_scatter(h > 0, h.flip(0)), torch.histc(h.detach(), 4)]


def _equal(model: nn.Module, *inputs: torch.Tensor) -> axograph.ParallelModule:
    original = copy.deepcopy(model)
    module = axograph.parallelize(model, grid=GRID)
    outputs = [m(*inputs) for m in (module, original)]
    assert largest_difference(*outputs) < 1e-9
    for loss, _ in outputs:
        loss.backward()
    assert_equal_gradients(module, original)
    for (name, ours), theirs in zip(module.named_buffers(), original.buffers(), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-9), name
    return module


def _features() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("function", [_ordered, _complex, _strided], ids=lambda f: f.__name__)
def test_operators_equal_the_unmodified_ones(function: Callable[..., object]) -> None:
    torch.manual_seed(0)
    _equal(Around(function).double(), _features())  # type: ignore[arg-type]


def test_losses_over_a_cut_vocabulary_equal_the_unmodified_ones() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, CLASSES, (BATCH, LENGTH), generator=torch.Generator().manual_seed(2))
    labels[0, 3:] = labels[2, 1] = -1
    _equal(Losses().double(), _features(), labels)


def test_updates_in_place_and_scalar_parameters_equal_the_unmodified_ones() -> None:
    torch.manual_seed(0)
    module = _equal(InPlace().double(), _features())
    assert int(module.seen) == BATCH
    assert module.scale.shape == ()


def test_operators_without_a_rule_run_gathered_and_are_reported() -> None:
    torch.manual_seed(0)
    model, x = Around(_without_rules).double(), _features()
    report = axograph.check(model, (x,), GRID)
    gathered = {finding.what for finding in report.of("gathered")}
    assert gathered >= {"aten._pdist_forward", "aten._pdist_backward", "aten.masked_scatter", "aten.histc"}
    assert not {what for what in gathered if "mm" in what}
    _equal(model, x)
