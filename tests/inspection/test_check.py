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
        return torch.pdist(self.layer(x))


class Shuffled(nn.Module):
    """A linear layer whose rows come in a new order in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[torch.randperm(len(x))]


class Flat:
    """Every collective takes its bytes, in seconds, and every operator the bytes that it reads and writes."""

    def compute_s(self, work: Compute) -> float:
        return work.size_bytes

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return collective.size_bytes

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


class Layers(nn.Module):
    """Norms, whose inputs cost less to repeat than to cut, and odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6, bias=False)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_model_of_which_all_is_cut_has_no_findings() -> None:
    report = axograph.check(nn.Linear(8, 16, bias=False), (torch.ones(4, 8),), (2, 1, 1, 2))
    assert report.findings == ()
    assert report.operators == 6
    assert report.cost_s is not None
    assert "6 operators on grid x=2 y=1 z=1 data=2" in str(report)
    assert "no findings" in str(report)


def test_an_operator_without_a_rule_is_listed_with_its_line_and_cost() -> None:
    report = axograph.check(Odd(), (torch.ones(4, 8),), (2, 1, 1, 1), cost_model=Flat())
    (distance,) = [finding for finding in report.of("gathered") if finding.what == "aten._pdist_forward"]
    assert distance.where == "the model"
    assert distance.source.endswith("return torch.pdist(self.layer(x))")
    assert distance.source.startswith("test_check.py:")
    assert distance.cost_s == 4 * 16 * 4  # an f32 matrix of 4 x 16 is gathered
    assert report.cost_s is not None
    assert distance.share == distance.cost_s / report.cost_s
    assert str(distance).splitlines()[0] in str(report)


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sort(-1).values


def test_an_operator_that_needs_a_dim_whole_is_listed_where_that_is_gathered() -> None:
    report = axograph.check(Sorted(), (torch.ones(3, 64),), (2, 1, 1, 1), plan={"layer": "m k n/x"}, cost_model=Flat())
    (found,) = [finding for finding in report.of("gathered") if "aten.sort" in finding.what]
    assert found.detail.endswith("=64 whole")
    assert found.cost_s >= 3 * 64 * 4
    assert found.source.startswith("test_check.py:")


def test_what_is_repeated_is_listed_by_place_with_its_reason_and_share() -> None:
    report = axograph.check(Layers(), (torch.ones(2, 6),), (1, 2, 1, 1), scheme="axonn")
    found = {finding.where: finding for finding in report.of("replicated")}
    norms = found["layers.*.0"]
    assert "aten.native_layer_norm" in norms.what
    assert norms.count == 4  # forward and backward of two layers
    assert str(norms).splitlines()[0] in str(report)
    assert norms.detail == "y=2: to repeat it costs less than to cut it"
    assert norms.source.startswith("test_check.py:")
    assert 0 < norms.share < 1
    assert [f.cost_s for f in report.findings] == sorted((f.cost_s for f in report.findings), reverse=True)


def test_what_nothing_divides_is_repeated_for_that_reason() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 3), nn.Tanh())
    report = axograph.check(model, (torch.ones(1, 20),), (1, 5, 1, 1))
    found = {finding.where: finding for finding in report.of("replicated")}
    assert "aten.tanh" in found["*"].what  # of 1, whose bias has 3 numbers, and of 2
    assert found["*"].detail == "y=5 divides none of d1=3"


def test_uneven_cuts_are_listed_with_their_parts() -> None:
    report = axograph.check(Layers(), (torch.ones(3, 6),), (1, 1, 1, 2))
    (rows,) = [finding for finding in report.of("padded") if "aten.mm" in finding.what]
    assert rows.detail == "3/data: 2 on each of 2 ranks"
    assert rows.cost_s > 0
    stored = axograph.check(nn.Linear(4, 5, bias=False), (torch.ones(2, 4),), (3, 1, 1, 1), plan={"": "n/x"})
    assert ("parameter", "stored [5/x, 4]") in {(f.what, f.detail) for f in stored.of("padded")}
    assert "padded (cut unevenly" in str(stored)


def test_a_permutation_drawn_by_the_model_is_reported_as_refused() -> None:
    report = axograph.check(Shuffled(), (torch.ones(4, 8),), (2, 1, 1, 1))
    (finding,) = report.findings
    assert finding.kind == "refused"
    assert "draws random numbers" in finding.what
    assert report.cost_s is None


def test_a_plan_that_cannot_be_met_is_reported_as_refused() -> None:
    report = axograph.check(nn.Linear(8, 8), (torch.ones(4, 8),), (2, 1, 1, 1), plan={"up": "n/x"})
    (finding,) = report.findings
    assert finding.kind == "refused"
    assert finding.what == 'plan["up"] = "n/x" names no module'


def test_a_grid_that_is_none_is_refused() -> None:
    with pytest.raises(axograph.GridError, match="four positive integers"):
        axograph.check(nn.Linear(8, 8), (torch.ones(4, 8),), (2, 2))
