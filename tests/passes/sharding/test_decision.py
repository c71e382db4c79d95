"""A decision travels as plain data, and reads as the same assignment on another rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from axograph.capture import capture
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.decision import Decision, decided_once
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.search import Assignment, Search
from axograph.passes.sharding.survey import Survey


class Mlp(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, 16)
        self.down = nn.Linear(16, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(torch.relu(self.up(x)))).sum()


def search(features: int = 16) -> Search:
    """As each rank makes it: from a model of its own."""
    program = Normalize().run(capture(Mlp(features), (torch.ones(4, features),)))
    return Search(Survey(program, Grid(2, 1, 2, 1), Scheme.named(None), {0: 0}), RingModel())


def by_name(decided: Assignment) -> tuple[object, ...]:
    def named(node: fx.Node) -> str:
        return node.name

    strategies = {named(node): strategy for node, strategy in decided.strategies.items()}
    values = {(named(node), output): placed for (node, output), placed in decided.values.items()}
    return strategies, values, decided.results, decided.cost_s, decided.certificate


def test_another_rank_reads_what_the_first_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = search(), search()
    found = first.run()
    sent: list[bytes] = []

    def send(make: Callable[[], Decision]) -> Decision:
        sent.append(pickle.dumps(make()))
        read: Decision = pickle.loads(sent[0])
        return read

    def receive(make: Callable[[], Decision]) -> Decision:
        read: Decision = pickle.loads(sent[0])
        return read

    assert by_name(decided_once(first.survey, lambda: found, send)) == by_name(found)
    monkeypatch.setattr(Search, "run", None)
    received = decided_once(other.survey, lambda: pytest.fail("searched"), receive)
    assert by_name(received) == by_name(found)
    assert received.roles is other.survey.roles
    assert received.rules is other.survey.rules


def test_a_rank_with_another_program_decides_for_itself() -> None:
    first, other = search(16), search(32)
    decision = Decision.of(first.survey, first.run())
    found = other.run()
    assert decided_once(other.survey, lambda: found, lambda make: decision) is found
