"""`check` names what is gathered, undivided or refused, with its place in the model and its cost."""

import pytest
import torch
from torch import nn

import axograph
from axograph.cost_model import Collective, Compute
from axograph.grid import Grid


class Odd(nn.Module):
    """A linear layer, and an operator that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(self.layer(x), self.layer(x) + 1)


class Flat:
    """Every collective takes its bytes, in seconds."""

    def compute_s(self, work: Compute) -> float:
        return 0.0

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return collective.size_bytes

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


def test_a_model_that_divides_has_no_findings() -> None:
    report = axograph.check(nn.Linear(8, 16), (torch.ones(4, 8),), (2, 2, 1, 1))
    assert report.findings == ()
    assert report.operators > 0
    assert "no findings" in str(report)


def test_an_operator_without_a_rule_is_listed_with_its_line_and_cost() -> None:
    report = axograph.check(Odd(), (torch.ones(4, 8),), (2, 1, 1, 1), cost_model=Flat())
    gathered = [finding for finding in report.findings if finding.kind == "gathered"]
    (distance,) = [finding for finding in gathered if "_cdist_forward" in finding.what]
    assert "return torch.cdist(self.layer(x), self.layer(x) + 1)" in distance.where
    assert distance.cost_s == 2 * 4 * 16 * 4  # two f32 matrices of 4 x 16
    assert str(distance) in str(report)


def test_a_matmul_that_an_axis_does_not_divide_is_listed() -> None:
    report = axograph.check(nn.Sequential(nn.Linear(8, 9)), {"input": torch.ones(4, 8)}, (3, 1, 1, 5))
    (finding,) = report.findings
    assert finding.kind == "undivided"
    assert finding.where.startswith("0")
    assert finding.detail == "data=5 divides none of m=4, k=8, n=9"


def test_random_masks_are_reported_as_refused() -> None:
    report = axograph.check(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (torch.ones(4, 8),), (2, 1, 1, 1))
    (finding,) = report.findings
    assert finding.kind == "refused"
    assert "draws random numbers" in finding.what


def test_a_grid_that_is_none_is_refused() -> None:
    with pytest.raises(axograph.GridError, match="four positive integers"):
        axograph.check(nn.Linear(8, 8), (torch.ones(4, 8),), (2, 2))
