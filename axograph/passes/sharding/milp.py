"""The same minimisation as an integer program, for HiGHS: what elimination cannot finish, and what a limit couples.

A binary variable for each state of each variable, and for each pair that has a cost one for each pair of states, whose
sums over either end are the states of the other: the relaxation to real numbers is then close (Zheng et al., "Alpa",
arXiv 2201.12023, equations 1 to 8). Costs and limit are divided by their size, so that the solver's tolerances, 1e-6,
are relative ones.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MOST_PAIRS = 400_000
"""The most pairs of states that are handed to the solver while there is another answer: some minutes of work."""

PRECISION = 1e-6
"""The relative distance to the optimum below which the solver stops."""


class Costs(Protocol):
    """Costs of single variables, and of pairs."""

    unary: dict[Hashable, Array]
    pair: dict[tuple[Hashable, Hashable], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A sum that may not be larger than so much."""

    held: Costs
    """What each state adds to the sum, over the same variables and states as the costs."""
    most: float


@dataclass(frozen=True, slots=True)
class Found:
    """What the solver found."""

    states: dict[Hashable, int] | None
    """The best assignment, None where there is none that costs less than the cutoff."""
    bound: float
    """No assignment that keeps the limit and costs less than the cutoff costs less than this."""


def solve(problem: Costs, limit: Limit | None = None, *, cutoff: float = math.inf, longest_s: float = 60.0) -> Found:
    """The assignment of least cost below the cutoff that keeps the limit."""
    if any(len(cost) == 0 for cost in problem.unary.values()):
        return Found(None, math.inf)
    if math.isfinite(cutoff) and sum(cost.size for cost in problem.pair.values()) > MOST_PAIRS:
        return Found(None, -math.inf)
    from scipy.optimize import milp  # scipy takes half a second to import

    program = _Program(problem, limit, cutoff)
    options = {"mip_rel_gap": PRECISION / 2, "time_limit": longest_s}
    answer = milp(**program.arguments(), options=options)
    if answer.status == 2:  # infeasible
        return Found(None, math.inf)
    bound = -math.inf if answer.mip_dual_bound is None else program.unscaled(answer.mip_dual_bound)
    if answer.x is None:
        return Found(None, bound)
    states = program.states(answer.x)
    if answer.status == 0:  # within the gap asked for: that is what the solver calls optimal
        bound = max(bound, min(program.unscaled(answer.fun), cutoff))
    return Found(states, bound)


class _Program:
    """Columns, rows and costs of the integer program."""

    def __init__(self, problem: Costs, limit: Limit | None, cutoff: float) -> None:
        self.problem = problem
        self.limit = limit
        self.cutoff = cutoff
        self.first: dict[Hashable, int] = {}
        """The column of the first state of each variable."""
        self.count = 0
        self.costs: list[Array] = []
        self.held: list[Array] = []
        self.rows: list[Any] = []
        self.columns: list[Any] = []
        self.values: list[Any] = []
        self.sides: list[float] = []
        """The right sides of the equations."""
        self._states()
        self._pairs()
        cost = np.concatenate(self.costs)
        self.possible = np.isfinite(cost)
        self.cost = np.where(self.possible, cost, 0.0)
        self.scale = float(cutoff if math.isfinite(cutoff) else np.abs(self.cost).max()) or 1.0

    def _columns(self, cost: Array, held: Array | None) -> int:
        """Add columns with these costs; the number of the first."""
        at = self.count
        self.count += cost.size
        self.costs.append(cost.ravel())
        self.held.append(np.zeros(cost.size) if held is None else held.ravel())
        return at

    def _equation(self, columns: Any, values: Any, side: float) -> None:
        self.rows.append(np.full(len(columns), len(self.sides)))
        self.columns.append(columns)
        self.values.append(values)
        self.sides.append(side)

    def _states(self) -> None:
        for name, cost in self.problem.unary.items():
            held = self.limit.held.unary.get(name) if self.limit is not None else None
            self.first[name] = self._columns(cost, held)
            columns = np.arange(self.first[name], self.count)
            self._equation(columns, np.ones(len(columns)), 1.0)
        self.binaries = self.count

    def _pairs(self) -> None:
        held = dict(self.limit.held.pair) if self.limit is not None else {}
        for (a, b), cost in self.problem.pair.items():
            first = self._columns(cost, held.pop((a, b), None))
            grid = np.arange(first, self.count).reshape(cost.shape)
            for name, lines in ((a, grid), (b, grid.T)):
                for state, line in enumerate(lines):
                    columns = np.append(line, self.first[name] + state)
                    self._equation(columns, np.append(np.ones(len(line)), -1.0), 0.0)
        assert not held, "what is held depends on pairs that have costs"

    def arguments(self) -> dict[str, Any]:
        """The arguments of `scipy.optimize.milp`."""
        from scipy.optimize import Bounds, LinearConstraint
        from scipy.sparse import csr_array

        places = (np.concatenate(self.rows), np.concatenate(self.columns))
        matrix = csr_array((np.concatenate(self.values), places), shape=(len(self.sides), self.count))
        sides = np.array(self.sides)
        constraints = [LinearConstraint(matrix, sides, sides)]
        if self.limit is not None:
            held = np.concatenate(self.held) / self.limit.most
            constraints.append(LinearConstraint(csr_array(held[None, :]), -np.inf, 1.0))
        if math.isfinite(self.cutoff):
            constraints.append(LinearConstraint(csr_array(self.cost[None, :] / self.scale), -np.inf, 1.0))
        return {
            "c": self.cost / self.scale,
            "integrality": np.arange(self.count) < self.binaries,
            "bounds": Bounds(0.0, self.possible.astype(float)),
            "constraints": constraints,
        }

    def unscaled(self, cost: float) -> float:
        """A cost of the program as one of the problem."""
        return cost * self.scale

    def states(self, values: Array) -> dict[Hashable, int]:
        """The state of each variable."""
        return {
            name: int(np.argmax(values[first : first + len(self.problem.unary[name])]))
            for name, first in self.first.items()
        }
