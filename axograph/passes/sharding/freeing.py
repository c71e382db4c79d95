"""A search in which more than two axes are free: two of them at a time, the others kept where they are.

With the usual roles x and y are free and the search is exact. A third free axis has so many states and reshards that
to write them all down takes minutes. So the search begins with the plan of the usual roles, frees every two axes in
turn, each time to the exact optimum, and ends when no two of them have a better place.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.search import Assignment, Search
from axograph.passes.sharding.states import Kept
from axograph.passes.sharding.survey import Survey

_LESS = 1 - 1e-9


def freed(search: Search) -> Assignment:
    """The cheapest assignment found; never costlier than that of the usual roles."""
    survey = search.survey
    roles, grid = survey.roles, survey.grid
    free = [axis for axis in grid.cut_axes if axis not in (*roles.batch_axes, *roles.row_axes)]
    if len(free) <= 2:
        return search.run()
    usual = Survey(survey.program, grid, Scheme.named(None), survey.batch_dims, survey.stored, survey.entries)
    model, full_outputs = search.states.model, search.states.full_outputs
    best = Search(
        usual,
        model,
        full_outputs=full_outputs,
        memory_bytes=search.memory_bytes,
        remat=search.remat,
        resharder=search.resharder,
    ).run()
    waiting = list(combinations(free, 2))
    while waiting:
        pair = waiting.pop(0)
        found = _with_free(pair, search, best)
        if found.cost_s < best.cost_s * _LESS:
            best, waiting = found, [other for other in combinations(free, 2) if other != pair]
    certificate = f"optimal for every two of the axes {', '.join(free)}, the others kept"
    return replace(best, certificate=certificate, roles=roles)


def _with_free(pair: tuple[str, ...], search: Search, known: Assignment) -> Assignment:
    """The cheapest assignment in which all axes but two do at each operator what they do in a known one."""
    fixed = tuple(axis for axis in search.survey.grid.cut_axes if axis not in pair)
    kept = Kept(axes=fixed, strategies=known.strategies, values=known.values)
    return Search(
        search.survey,
        search.model,
        full_outputs=search.full_outputs,
        memory_bytes=search.memory_bytes,
        remat=search.remat,
        kept=kept,
        resharder=search.resharder,
    ).run()
