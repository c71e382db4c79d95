"""What a search decided, as plain data: one rank searches, and the others read what it found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from axograph.capture.listing import listing
from axograph.grid import Grid
from axograph.passes.sharding.roles import Roles
from axograph.passes.sharding.rule import Strategy
from axograph.passes.sharding.search import Assignment
from axograph.passes.sharding.strategies import Choice, Options
from axograph.passes.sharding.survey import Survey
from axograph.placement import Placement

Once = Callable[[Callable[[], "Decision"]], "Decision"]
"""Makes a decision on one rank and returns it on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An assignment without the nodes of a graph; equal programs have their operators in the same order."""

    program: str
    """A digest of the program that it is about."""
    choices: tuple[tuple[int, ...], ...]
    """For each operator and each cut axis, which of the operator's choices the axis makes."""
    values: tuple[tuple[str, int, Placement], ...]
    """Where tensors lie for their users: the node's name, which of its outputs, the placement."""
    rest: Assignment
    """All that does not depend on the nodes."""

    @classmethod
    def of(cls, survey: Survey, decided: Assignment) -> Decision:
        """What was decided, for other ranks to read."""
        axes = survey.grid.cut_axes
        alike: dict[tuple[int, ...], tuple[int, ...]] = {}
        choices = []
        for node in survey.nodes:
            every: list[Choice] = survey.options[node].choices()
            chosen = decided.strategies[node].chosen
            numbers = tuple(every.index(chosen.get(axis)) for axis in axes)
            choices.append(alike.setdefault(numbers, numbers))
        nobody = Roles(batch_axes=(), batch=frozenset(), batch_atoms={})
        return cls(
            program=_digest(survey),
            choices=tuple(choices),
            values=tuple((node.name, output, placed) for (node, output), placed in decided.values.items()),
            rest=replace(decided, strategies={}, values={}, roles=nobody, rules={}),
        )

    def read(self, survey: Survey) -> Assignment:
        """The assignment on this rank's own nodes."""
        known: dict[tuple[int, tuple[int, ...]], Strategy] = {}
        strategies = {}
        for node, numbers in zip(survey.nodes, self.choices, strict=True):
            options = survey.options[node]
            key = (id(options), numbers)
            if key not in known:
                known[key] = _strategy(options, numbers, survey.grid)
            strategies[node] = known[key]
        by_name = {node.name: node for node in survey.program.graph.nodes}
        values = {(by_name[name], output): placed for name, output, placed in self.values}
        return replace(self.rest, strategies=strategies, values=values, roles=survey.roles, rules=survey.rules)


def _strategy(options: Options, numbers: tuple[int, ...], grid: Grid) -> Strategy:
    """The strategy in which each cut axis makes the choice of its number."""
    every = options.choices()
    made = options.strategy({a: every[number] for a, number in zip(grid.cut_axes, numbers, strict=True)}, grid)
    assert made is not None, "what one rank can choose, all can"
    return made


def decided_once(survey: Survey, decide: Callable[[], Assignment], once: Once) -> Assignment:
    """The assignment that one rank searches for.

    A rank whose program is another one decides for itself: the comparison of the final programs says how they differ.
    """
    found = once(lambda: Decision.of(survey, decide()))
    return found.read(survey) if found.program == _digest(survey) else decide()


def _digest(survey: Survey) -> str:
    return hashlib.sha256(listing(survey.program).encode()).hexdigest()
