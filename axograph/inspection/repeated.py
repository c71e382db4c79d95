"""What the ranks of a grid do in common: operators that an axis does not cut, and the time that it costs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from axograph.capture.program import Program, facts
from axograph.cost_model import CostModel
from axograph.grid import Grid
from axograph.passes.sharding.arguments import is_pick
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.rules import rule_of
from axograph.passes.sharding.work import local_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Operators of one kind that run alike on all ranks along some axes."""

    what: str
    """The operator, such as "aten.topk.default"."""
    where: str
    """The module, layers by "*"."""
    axes: tuple[str, ...]
    """The axes that do not divide the work."""
    count: int
    """The number of such operators, forward and backward."""
    share: float
    """The part of a rank's compute time that is spent on what other ranks do as well, 0 to 1."""
    reason: str
    """"no rule", "needs its inputs whole", or "costs less than to cut"."""

    def __str__(self) -> str:
        axes = ".".join(self.axes)
        return f"{self.share:6.1%}  {self.what} of {self.where} ({self.count}), along {axes}: {self.reason}"


def repeated(program: Program, grid: Grid, model: CostModel, least: float = 0.01) -> list[Repeated]:
    """What is repeated in a sharded program (the stage "shard"), the largest share first; not shares below `least`.

    An operator that an axis of n ranks does not cut wastes 1 - 1/n of its time. Views take no time.
    """
    total_s = 0.0
    wasted_s: dict[tuple[str, str, tuple[str, ...], str], list[float]] = defaultdict(list)
    for node in program.graph.nodes:
        strategy = facts(node).strategy
        if node.op != "call_function" or is_pick(node) or not isinstance(strategy, Strategy):
            continue
        rule = rule_of(node)
        if rule.is_view:
            continue
        time_s = model.compute_s(local_work(node, rule, strategy, grid))
        total_s += time_s
        cut = {axis for axes in strategy.cuts.values() for axis in axes}
        idle = tuple(axis for axis in grid.cut_axes if axis not in cut)
        if idle:
            key = (str(node.target), re.sub(r"\.\d+\b", ".*", facts(node).path), idle, _reason(rule))
            wasted_s[key].append(time_s * (1 - 1 / grid.extent(idle)))
    found = [
        Repeated(what=what, where=where or "the model", axes=axes, count=len(times), share=sum(times) / total_s,
                 reason=reason)
        for (what, where, axes, reason), times in wasted_s.items()
    ]  # fmt: skip
    return sorted((item for item in found if item.share >= least), key=lambda item: -item.share)


def _reason(rule: Rule) -> str:
    if not rule.known:
        return "no rule"
    free = [name for name, size in rule.sizes.items() if size > 1 and name not in rule.whole]
    return "costs less than to cut" if free else "needs its inputs whole"
