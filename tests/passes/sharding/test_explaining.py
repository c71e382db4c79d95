"""Explanations of a matmul: its moves, the exact runner-up, and what was ruled out."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from axograph.capture import Program, capture
from axograph.cost_model import Collective, Compute, CostModel, RingModel
from axograph.explanation import Explanation
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.constraints import Entry
from axograph.passes.sharding.explaining import Explainer, _text
from axograph.passes.sharding.search import Search
from axograph.passes.sharding.shard import Shard
from axograph.plan import Plan


@dataclass(frozen=True)
class Bytes:
    """A ring's bytes in seconds, an all-reduce a bit less than a reduce-scatter and an all-gather; nothing else."""

    def compute_s(self, work: Compute) -> float:
        return 0.0

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        ranks = grid.extent(collective.axes)
        return collective.size_bytes * (ranks - 1) / ranks * (1.9 if collective.kind == "all_reduce" else 1.0)

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


class Stack(nn.Module):
    def __init__(self, *features: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n, bias=False) for k, n in itertools.pairwise(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.sum()


@functools.cache
def program(*features: int) -> Program:
    return Normalize().run(capture(Stack(*features), (torch.ones(16, features[0]),)))


def planned(
    features: tuple[int, ...], grid: Grid, entries: dict[str, str] | None = None, model: CostModel | None = None,
    scheme: str | None = None,
) -> Plan:  # fmt: skip
    read = tuple(Entry.read(pattern, text, grid) for pattern, text in (entries or {}).items())
    model = model or RingModel()
    shard = Shard(grid=grid, cost_model=model, batch_dims={0: 0}, entries=read, scheme=scheme)
    plan = shard.run(program(*features)).plan
    assert plan is not None
    return plan


def test_the_moves_are_those_of_the_algorithm_with_their_bytes() -> None:
    entries = {"layers.0": "m/data.z k/x n/y", "layers.1": "m/data.z k/y n/x", "layers.2": "m/data.z k/x n/y"}
    plan = planned((32, 64, 128, 32), Grid(2, 2, 2, 2), entries, Bytes(), "axonn")
    found = plan.explain("layers.1")
    weight, rows = 4 * 64 * 128, 16 // 4
    assert sorted((m.phase, m.tensor, m.kind, m.axes, m.size_bytes) for m in found.moves) == [
        ("backward", "W", "all_gather", ("z",), weight / 4),
        ("backward", "dI", "all_reduce", ("x",), rows * 4 * 64 / 2),
        ("backward", "dW", "all_reduce", ("data",), weight / 8),
        ("backward", "dW", "reduce_scatter", ("z",), weight / 4),
        ("forward", "O", "all_reduce", ("y",), rows * 4 * 128 / 2),
        ("forward", "W", "all_gather", ("z",), weight / 4),
    ]
    assert all(m.cost_s == m.size_bytes / 2 * (1.9 if m.kind == "all_reduce" else 1.0) for m in found.moves)
    assert (found.placement, found.shape, found.weight) == ("m/data.z k/y n/x", (16, 64, 128), "layers.1.weight")
    assert found.compute_s == 0.0


class Fork(nn.Module):
    """Two products of one input, whose gradients are added."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 32, bias=False)
        self.left = nn.Linear(32, 64, bias=False)
        self.right = nn.Linear(32, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.inner(x))
        return (torch.relu(self.left(x)) * torch.relu(self.right(x))).sum()


def test_a_sum_that_is_reduced_later_is_told() -> None:
    grid = Grid(2, 1, 1, 1)
    entries = tuple(Entry.read(path, text, grid) for path, text in {"inner": "m k n", "*t": "m n/x"}.items())
    shard = Shard(grid=grid, cost_model=Bytes(), batch_dims={0: 0}, entries=entries)
    plan = shard.run(Normalize().run(capture(Fork(), (torch.ones(16, 8),)))).plan
    assert plan is not None
    (reduced,) = [move for move in plan.explain("right").moves if move.tensor == "dI"]
    assert (reduced.kind, reduced.axes, reduced.size_bytes, reduced.summed) == ("all_reduce", ("x",), 4 * 16 * 32, True)
    assert "with what it is added to" in str(reduced)


def explainer_of(plan: Plan) -> Explainer:
    assert isinstance(plan.explainer, Explainer)
    return plan.explainer


@pytest.mark.parametrize("grid", [Grid(2, 1, 2, 1)], ids=str)
def test_the_runner_up_is_the_best_of_all_plans_with_another_placement(grid: Grid) -> None:
    features = (32, 64, 32)
    plan = planned(features, grid)
    search = explainer_of(plan).make_search()
    search.problem()
    for path in plan:
        found = plan.explain(path)
        states = search.members[search.member_of[search.survey.matmuls[path]]].strategies
        others = {_text(strategy) for strategy in states} - {str(plan[path])}
        costs = {text: planned(features, grid, {path: text}).cost_s for text in others}
        best = min(costs, key=costs.__getitem__)
        assert found.runner_up_cost_s == pytest.approx(costs[best], rel=1e-9)
        assert found.runner_up is not None
        assert costs[found.runner_up] == pytest.approx(costs[best], rel=1e-9)
        assert found.difference_s == pytest.approx(costs[best] - plan.cost_s, rel=1e-6)
        assert found.difference_s > 0
        assert f"runner-up: {found.runner_up}, " in str(found)


def test_a_matmul_without_another_placement_has_no_runner_up() -> None:
    found = planned((32, 64), Grid(2, 1, 1, 1), {"layers.0": "m k n/x"}).explain("layers.0")
    assert (found.runner_up, found.runner_up_cost_s, found.difference_s) == (None, None, None)
    assert "runner-up: none" in str(found)


def test_a_runner_up_cuts_other_factors_not_another_part_of_the_same_one() -> None:
    """Rows are a batch and positions: x may cut either, and both are `m/x`."""
    program = Normalize().run(capture(Stack(4, 4), (torch.ones(16, 8, 4),)))
    grid = Grid(2, 1, 1, 1)
    entries = (Entry.read("layers.0", "k n", grid),)
    plan = Shard(grid=grid, cost_model=RingModel(), batch_dims={0: 0}, entries=entries).run(program).plan
    assert plan is not None
    assert str(plan["layers.0"]) == "m/x k n"
    assert plan.explain("layers.0").runner_up is None


def ruled_out(found: Explanation) -> dict[str, str]:
    return {f"{item.axis} on {item.factor}": item.why for item in found.ruled_out}


def test_what_was_ruled_out_is_told_with_its_reason() -> None:
    plan = planned((32, 64, 32), Grid(2, 1, 1, 16), {"layers.1": "n/x"})
    first, second = (ruled_out(plan.explain(path)) for path in plan)
    taken = {"data on k": "data takes the batch", "data on n": "data takes the batch"}
    assert first == {**taken, "x on m": "not beside the cuts of the other axes"}
    assert second["x on k"] == second["x on m"] == second["data on n"] == 'plan["layers.1"] = "n/x"'
    assert second["data on k"] == "data takes the batch"
    big = ruled_out(planned((32, 4, 64), Grid(8, 1, 1, 1)).explain("layers.0"))
    assert big == {"x on n": "8 ranks do not divide n=4"}
    scheme = ruled_out(planned((32, 64), Grid(2, 2, 1, 1), scheme="axonn").explain("layers.0"))
    assert scheme["x on m"] == scheme["y on m"] == "the scheme axonn"


def test_identical_layers_are_named() -> None:
    found = planned((32, 32, 32, 32, 32, 32), Grid(2, 1, 1, 1)).explain("layers.1")
    assert found.together == ("layers.3",)
    assert "decided together with layers.3" in str(found)


def test_nothing_is_worked_out_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Search] = []
    plan = planned((32, 64, 32), Grid(2, 1, 1, 1))
    problem = Search.problem
    monkeypatch.setattr(Search, "problem", lambda self: built.append(self) or problem(self))  # type: ignore[func-returns-value]
    assert built == []
    plan.explain("layers.0")
    plan.explain("layers.1")
    assert len(built) == 1
