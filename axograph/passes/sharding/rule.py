"""Op rules: which dims of an operator's inputs and outputs are the same factor, in one line of text.

    mm        "m k, k n -> m n"            a factor missing on the right is summed: cut it and the result is partial
    softmax   "b s [v] -> b s [v]"         a factor in brackets must be whole
    reshape   "b s (h d) -> b s h d"       a dim of several factors, outermost first
    add       "b s, 1 s -> b s"            a dim of size 1 has no factor

After the factor rules of Shardy (https://github.com/openxla/shardy) and the notation of einops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from axograph.placement import Placement

Term = tuple[tuple[str, ...], ...]
"""The factors of each dim of one tensor, outermost first; `()` for a dim of size 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What an operator allows on each axis of the grid."""

    inputs: tuple[Term, ...]
    """One term per tensor argument, in the order of the flattened arguments."""
    outputs: tuple[Term | None, ...]
    """One term per output; None for an output that is no tensor."""
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    """Factors that no axis may cut."""
    leading: frozenset[str] = frozenset()
    """Factors that may be cut only into contiguous ranges of positions."""
    linear: tuple[frozenset[int], ...] = ()
    """Sets of inputs that may be partial sums together, the others being copies; the outputs are then partial."""
    reduction: str = "sum"
    """How a summed factor is reduced: "sum" or "max"."""
    copied: frozenset[int] = frozenset()
    """Outputs that are the same on all ranks, whatever is cut: the state of a generator, an empty tensor."""
    statistics: Mapping[str, int] = field(default_factory=dict)
    """For a factor that `lower` can cut: how many all-reduces of a tensor without that factor it needs."""
    paddable: frozenset[str] | None = None
    """Factors that axes may cut unevenly, the last parts padded. None: all of them where the operator is emitted as it
    is, but not those with statistics; none where `lower` emits another."""
    fill: float = 0.0
    """What padding is set to before a factor with statistics, or one reduced to a maximum, is worked along."""
    positions: frozenset[int] = frozenset()
    """Inputs that are positions in another tensor: in padding they are set to 0, which is one."""
    flops: float = 0.0
    """Floating-point operations of the whole operator."""
    is_view: bool = False
    """Whether the operator moves no data."""
    lower: Lower | None = None
    """How to emit the operator on local tensors; None: the same operator, with the same other arguments."""
    known: bool = True
    """False for the rule of an operator without one: everything whole."""

    def pads(self, factor: str) -> bool:
        """Whether axes may cut a factor unevenly."""
        if self.paddable is not None:
            return factor in self.paddable
        return (self.lower is None or self.is_view) and factor not in self.statistics

    def sizes_of(self, dim: tuple[str, ...]) -> list[tuple[str, int, int]]:
        """The factors of a dim, each with the product of the sizes inside it, and that including itself."""
        found = []
        inside = 1
        for factor in reversed(dim):
            found.append((factor, inside, inside * self.sizes[factor]))
            inside *= self.sizes[factor]
        return found

    def fill_of(self, factor: str, input_: int) -> float | None:
        """What the padding of a factor must be in an input; None where anything may be there."""
        if factor in self.leading:  # `lower` looks up only what is there
            return None
        if input_ in self.positions:
            return 0.0
        summed = any(
            term is not None and i not in self.copied and factor not in {name for dim in term for name in dim}
            for i, term in enumerate(self.outputs)
        )
        if factor in self.statistics or (summed and self.reduction == "max"):
            return self.fill
        return 0.0 if summed else None

    def __str__(self) -> str:
        ins = ", ".join(_term_text(term, self.whole) for term in self.inputs)
        outs = ", ".join("-" if term is None else _term_text(term, self.whole) for term in self.outputs)
        return f"{ins} -> {outs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to run an operator on the grid."""

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement | None, ...]
    cuts: Mapping[str, tuple[str, ...]]
    """The axes that cut each factor; factors that are not named are whole."""
    parts: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """The size of each part of a factor that is cut, and the axes that cut it."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What each axis does, as the search wrote it."""

    def axes(self, *factors: str) -> tuple[str, ...]:
        """The axes that cut any of these factors."""
        return tuple(axis for factor in factors for axis in self.cuts.get(factor, ()))


Lower = Callable[[Any, fx.Node, tuple[Any, ...], dict[str, Any], Strategy], fx.Node]
"""(emitter, node of the global graph, local arguments, local keyword arguments, strategy) -> the local result."""


def parse_rule(text: str, shapes: Sequence[Sequence[int]], **options: Any) -> Rule:
    """Read a rule's text for an operator whose inputs have these shapes.

    >>> str(parse_rule("m k, k [n] -> m [n]", [(4, 8), (8, 2)]))
    'm k, k [n] -> m [n]'
    """
    left, right = text.split("->")
    whole: set[str] = set()
    inputs = tuple(_parse_term(term, whole) for term in left.split(","))
    outputs = tuple(_parse_term(term, whole) for term in right.split(","))
    sizes: dict[str, int] = dict(options.pop("sizes", {}))
    trimmed = []
    for term, shape in zip(inputs, shapes, strict=True):
        assert len(term) == len(shape), f"{text} for shapes {shapes}"
        for dim, size in zip(term, shape, strict=True):
            if len(dim) == 1:
                assert sizes.setdefault(dim[0], size) == size or 1 in (size, sizes[dim[0]]), f"{text} for {shapes}"
                sizes[dim[0]] = max(size, sizes[dim[0]])
    for term, shape in zip(inputs, shapes, strict=True):
        one = (dim if size > 1 else () for dim, size in zip(term, shape, strict=True))
        trimmed.append(tuple(tuple(f for f in dim if sizes[f] > 1) for dim in one))
    kept = tuple(tuple(tuple(f for f in dim if sizes[f] > 1) for dim in term) for term in outputs)
    return Rule(inputs=tuple(trimmed), outputs=kept, sizes=sizes, whole=frozenset(whole), **options)


def _parse_term(text: str, whole: set[str]) -> Term:
    dims: list[tuple[str, ...]] = []
    for token in re.findall(r"\([^)]*\)|\[\w+\]|\w+", text):
        factors = tuple(re.findall(r"\w+", token))
        whole.update(re.findall(r"\[(\w+)\]", token))
        dims.append(() if factors == ("1",) else factors)
    return tuple(dims)


def _term_text(term: Term, whole: frozenset[str]) -> str:
    def dim_text(dim: tuple[str, ...]) -> str:
        names = [f"[{name}]" if name in whole else name for name in dim]
        return names[0] if len(names) == 1 else f"({' '.join(names)})" if names else "1"

    return " ".join(dim_text(dim) for dim in term)
