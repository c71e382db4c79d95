"""The classic layouts as restrictions of the search; without one, only the rule that every axis cuts every matmul.

axonn     x and y cut one feature dim of each matmul each; z and data the batch; weights stored cut by z
megatron  x and y together cut one feature dim (columns or rows); z and data the batch; weights stored cut by z
fsdp      every axis cuts the batch; weights stored cut by x, y and z
ddp       every axis cuts the batch; weights are copies
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from axograph.errors import PlanError
from axograph.grid import AXES, Grid
from axograph.passes.sharding.rule import Strategy
from axograph.placement import Placement
from axograph.plan import SCHEMES

Storage = Literal["free", "z", "all", "copies"]

USUAL_BATCH_AXES = ("data", "z")
"""The axes that take the batch, by preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What the search may choose."""

    name: str | None = None
    rows: tuple[str, ...] = USUAL_BATCH_AXES
    """The axes that take the batch where the scheme does not say that all do."""

    @classmethod
    def named(cls, name: str | None, rows: tuple[str, ...] = USUAL_BATCH_AXES) -> Scheme:
        """The scheme of this name, None for the free search; `PlanError` at an unknown name."""
        if name is not None and name not in SCHEMES:
            raise PlanError(
                f"no scheme is called {name!r}",
                asked=f"scheme={name!r}",
                given=f"the schemes {', '.join(SCHEMES)}",
                rule="a scheme pins the search to a classic layout; None searches freely",
                remedy="scheme=None, or one of those named",
            )
        return cls(name=name, rows=rows)

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that take the batch where they divide it, by preference."""
        return ("data", "z", "y", "x") if self.name in ("fsdp", "ddp") else self.rows

    def filter(self, strategies: list[Strategy], features: tuple[str, ...], grid: Grid) -> list[Strategy]:
        """The strategies of a matmul that the scheme allows; where none is, those with the fewest idle axes."""
        allowed = [s for s in strategies if self.allows(s, features, grid)]
        return allowed or _busiest(strategies, grid)

    def allows(self, strategy: Strategy, features: tuple[str, ...], grid: Grid) -> bool:
        """Whether a matmul is laid out as the scheme has it."""
        if _idle(strategy, grid):
            return False
        owner = {axis: factor for factor, axes in strategy.cuts.items() for axis in axes}
        tensor_axes = [axis for axis in ("x", "y") if grid[axis] > 1]
        owners = [owner[axis] for axis in tensor_axes]
        if self.name in ("axonn", "megatron") and any(factor not in features for factor in owners):
            return False
        if self.name == "axonn":
            return len(set(owners)) == len(owners)
        if self.name == "megatron":
            return len(set(owners)) <= 1
        return True

    def storage(self, placements: list[Placement], grid: Grid) -> list[Placement]:
        """The ways to store a parameter that the scheme allows."""
        if self.name == "ddp":
            return [p for p in placements if not p.axes]
        wanted = {"axonn": ("z",), "megatron": ("z",), "fsdp": ("x", "y", "z")}.get(self.name or "", ())
        if not wanted or (placements and len(placements[0].dims) < 2):
            return placements
        most = max(len(p.axes & set(wanted)) for p in placements)
        return [p for p in placements if len(p.axes & set(wanted)) == most]


def _idle(strategy: Strategy, grid: Grid) -> tuple[str, ...]:
    """The axes along which every rank would do the same work."""
    busy = {axis for axes in strategy.cuts.values() for axis in axes}
    return tuple(axis for axis in AXES if grid[axis] > 1 and axis not in busy)


def _busiest(strategies: list[Strategy], grid: Grid) -> list[Strategy]:
    least = min(grid.extent(_idle(strategy, grid)) for strategy in strategies)
    return [strategy for strategy in strategies if grid.extent(_idle(strategy, grid)) == least]
