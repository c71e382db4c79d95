"""What differs between two plans, as data and as text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from axograph.explanation import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that two plans have differently; "" on the side that does not have it."""

    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.before or '(not there)'} -> {self.after or '(not there)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """What one plan has differently from another one. It is true where there is a difference other than in cost."""

    settings: dict[str, Change]
    """The grid and the scheme, where they differ."""
    matmuls: dict[str, Change]
    """The placements that differ, by the path of the matmul."""
    parameters: dict[str, Change]
    """Where parameters are stored, by name."""
    before_s: float
    """Seconds of a step under the plan compared."""
    after_s: float
    """Seconds of a step under the one it is compared with."""

    def __bool__(self) -> bool:
        return bool(self.settings or self.matmuls or self.parameters)

    def __str__(self) -> str:
        change = f"{duration(self.before_s)} -> {duration(self.after_s)} a step"
        if self.before_s and self.after_s != self.before_s:
            change += f" ({self.after_s / self.before_s - 1:+.2%})"
        if not self:
            return f"the same plan, {change}"
        lines = [f"{len(self.matmuls)} matmuls and {len(self.parameters)} parameters differ, {change}"]
        lines += [f"  {name}  {change}" for name, change in self.settings.items()]
        for kind, changes in (("", self.matmuls), ("stored ", self.parameters)):
            grouped = _grouped(changes)
            width = max((len(name) for name in grouped), default=0)
            lines += [f"  {name:<{width}}  {kind}{change}" for name, change in grouped.items()]
        return "\n".join(lines)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Change]:
    """The entries that are not the same on both sides."""
    names = dict.fromkeys((*before, *after))
    pairs = {name: Change(before=before.get(name, ""), after=after.get(name, "")) for name in names}
    return {name: change for name, change in pairs.items() if change.before != change.after}


def unnumbered_layers(path: str) -> str:
    """A path with the numbers of layers as "*".

    >>> unnumbered_layers("layers.3.mlp.up2")
    'layers.*.mlp.up2'
    """
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)


def _grouped(changes: Mapping[str, Change]) -> dict[str, Change]:
    """Equal changes of numbered layers under one name: "layers.*.up (12)"."""
    alike: dict[tuple[str, Change], list[str]] = defaultdict(list)
    for name, change in changes.items():
        alike[unnumbered_layers(name), change].append(name)
    return {
        names[0] if len(names) == 1 else f"{pattern} ({len(names)})": change
        for (pattern, change), names in alike.items()
    }
