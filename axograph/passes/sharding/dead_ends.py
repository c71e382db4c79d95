"""Dead-end elimination: states that another state of the same variable beats, whatever the neighbours do, go.

Exact: at least one optimum is left. After Goldstein, Biophys. J. 66 (1994).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Alive = dict[Hashable, npt.NDArray[np.intp]]
"""The states of each variable that may be in an optimum."""

_CHUNK = 1_000_000
"""The most differences worked out at once."""


class Costs(Protocol):
    """Costs of single variables, and of pairs."""

    unary: dict[Hashable, Array]
    pair: dict[tuple[Hashable, Hashable], Array]


def alive_states(
    problem: Costs, start: Mapping[Hashable, npt.NDArray[np.intp]] | None = None, changed: Hashable = None
) -> Alive:
    """The states that may be in an optimum, of those to start with; `changed` is the one variable that has changed."""
    if start is None:
        alive = {name: np.flatnonzero(np.isfinite(cost)) for name, cost in problem.unary.items()}
    else:
        alive = dict(start)
    around: dict[Hashable, list[tuple[Hashable, Array]]] = {name: [] for name in problem.unary}
    for (a, b), cost in problem.pair.items():
        around[a].append((b, cost))
        around[b].append((a, cost.T))
    waiting = dict.fromkeys(problem.unary if changed is None else (other for other, _ in around[changed]))
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        if _shrink(name, problem.unary[name], around[name], alive):
            waiting |= dict.fromkeys(other for other, _ in around[name])
    return alive


def _shrink(name: Hashable, unary: Array, around: list[tuple[Hashable, Array]], alive: Alive) -> bool:
    """Remove the states that another state beats whatever the neighbours do; whether any went."""
    states = alive[name]
    if len(states) == 0:
        return False
    tables = [cost[np.ix_(states, alive[other])] for other, cost in around]
    possible = np.ones(len(states), dtype=bool)
    for table in tables:
        possible &= np.isfinite(table).any(axis=1)
    excess = unary[states][:, None] - unary[states][None, :]
    for table in tables:
        with np.errstate(invalid="ignore"):  # inf - inf stands for a state that is impossible
            excess = excess + _least_difference(table)
    beaten = excess > 0
    # of two equal states the first stays
    beaten |= (excess == 0) & np.tri(len(states), k=-1, dtype=bool)
    beaten &= possible[None, :]
    np.fill_diagonal(beaten, False)
    keep = possible & ~beaten.any(axis=1)
    if keep.all():
        return False
    alive[name] = states[keep]
    return True


def _least_difference(table: Array) -> Array:
    """For two states, the least by which the first costs more than the second, over the states of a neighbour."""
    rows, columns = table.shape
    found = np.empty((rows, rows))
    step = max(1, _CHUNK // max(1, rows * columns))
    for start in range(0, rows, step):
        first = table[start : start + step]
        with np.errstate(invalid="ignore"):
            difference = first[:, None, :] - table[None, :, :]
        difference[np.broadcast_to(np.isinf(first)[:, None, :], difference.shape)] = np.inf
        found[start : start + step] = difference.min(axis=2, initial=np.inf)
    return found
