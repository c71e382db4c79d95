"""What is refused after the search: an axis that cuts no operator with work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torch import fx

from axograph.capture.program import facts
from axograph.errors import GridError
from axograph.passes.sharding.search import Assignment
from axograph.passes.sharding.strategies import Cut, Options
from axograph.passes.sharding.survey import Survey

_SHOWN = 4
"""The most operators, and names of one operator, in a message."""


def refuse_idle_axes(survey: Survey, decided: Assignment) -> None:
    """Raise `GridError` where an axis cuts no operator with work: every rank along it would repeat all of it."""
    heavy = [node for node, rule in decided.rules.items() if rule.flops]
    choices = [choice for node in heavy for choice in decided.strategies[node].chosen.items()]
    busy = {axis for axis, choice in choices if isinstance(choice, Cut)}
    for axis in survey.grid.cut_axes if heavy else ():
        if axis in busy:
            continue
        raise GridError(
            f"axis {axis} cuts nothing in this model",
            asked=f"grid {survey.grid}",
            given=_sizes_text(survey, heavy),
            rule="an axis cuts at least one of these dims, or parts in brackets, evenly or with little padding: "
            f"beside the cuts of the other axes, none is a multiple of {survey.grid[axis]}, or near enough to one",
            remedy=f"{axis}=1, or a divisor of one of these sizes",
        )


def _sizes_text(survey: Survey, nodes: Sequence[fx.Node]) -> str:
    """The operators of the forward with the sizes of what may be cut, equal ones in one line."""
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for node in nodes:
        about = facts(node)
        if about.phase == "forward":
            operator = str(node.target).removeprefix("aten.").partition(".")[0].strip("_")
            name = about.path if operator == "mm" and about.path else f"{operator} in {about.path or 'the model'}"
            names[_parts_text(survey.options[node])][name] = None
    lines = [f"{_listed(list(who), ', ')}: {sizes}" for sizes, who in names.items()]
    return _listed(lines, "\n") or "no operator with work"


def _listed(texts: list[str], between: str) -> str:
    more = len(texts) - _SHOWN
    return between.join(texts[:_SHOWN] + ([f"and {more} more"] if more > 0 else []))


def _parts_text(options: Options) -> str:
    """The factors that may be cut: `m=8 n=(5 8)`, where n is 5 parts of 8."""
    parts: dict[str, list[str]] = defaultdict(list)
    for unit in options.units:
        parts[unit.factor].append(str(unit.size))
    texts = {factor: sizes[0] if len(sizes) == 1 else f"({' '.join(sizes)})" for factor, sizes in parts.items()}
    return " ".join(f"{factor}={texts[factor]}" for factor in options.rule.sizes if factor in texts)
