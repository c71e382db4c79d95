"""The atoms of every dim: the factors into which the graph's views divide it.

A fused projection of 2304 features that is later viewed as `3 12 64` is cut over the 12; so its dim is `(3 12 64)`
wherever it goes: in the product, in the weight, in the gradient. The division is found by passing the boundaries
between factors from dim to dim, through the rules, until nothing changes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch import fx

from axograph.passes.sharding.arguments import Value, is_pick, output_tensors, resolve, tensor_arguments, tensor_of
from axograph.passes.sharding.rule import Rule
from axograph.placement import Placement

Atoms = tuple[tuple[int, ...], ...]
"""For each dim of a tensor, the sizes of its factors, outermost first."""


class Boundaries:
    """For each dim of each value: the products of the sizes inside each boundary between two factors.

    A dim of 24 = 2*3*4 has boundaries at 4 and at 12. They form a chain, each dividing the next.
    """

    def __init__(self) -> None:
        self.found: dict[Value, list[set[int]]] = {}
        self.sizes: dict[Value, tuple[int, ...]] = {}

    def declare(self, value: Value) -> None:
        """Start with no boundaries."""
        shape = tuple(tensor_of(value).shape)
        self.sizes[value] = shape
        self.found[value] = [set() for _ in shape]

    def add(self, value: Value, dim: int, inside: int) -> bool:
        """Add a boundary where it fits the chain; whether it is new."""
        size, chain = self.sizes[value][dim], self.found[value][dim]
        if inside in chain or not 1 < inside < size or size % inside:
            return False
        if any(inside % other and other % inside for other in chain):
            return False
        chain.add(inside)
        return True

    def atoms(self, value: Value) -> Atoms:
        """The factors of each dim."""
        dims = []
        for size, chain in zip(self.sizes[value], self.found[value], strict=True):
            marks = [1, *sorted(chain), size]
            dims.append(tuple(b // a for a, b in reversed(list(pairwise(marks)))) or (1,))
        return tuple(dims)


def find_atoms(
    graph: fx.Graph,
    rules: Mapping[fx.Node, Rule],
    tied: Iterable[tuple[Value, Value]] = (),
    stored: Mapping[Value, Placement] | None = None,
) -> dict[Value, Atoms]:
    """The atoms of every value of the graph.

    `tied` values must lie alike, so they share their boundaries; `stored` ones already lie somewhere.
    """
    boundaries = Boundaries()
    touching: dict[Value, set[fx.Node]] = defaultdict(set)
    for node in graph.nodes:
        if node.op in ("placeholder", "call_function") and not is_pick(node):
            for index, tensor in enumerate(output_tensors(node)):
                if tensor is not None:
                    boundaries.declare((node, index))
                    touching[node, index].add(node)
        if node in rules:
            for argument in tensor_arguments(node):
                touching[resolve(argument)].add(node)
    partners: dict[Value, list[Value]] = defaultdict(list)
    for a, b in tied:
        partners[a].append(b)
        partners[b].append(a)
    for value, placement in (stored or {}).items():
        for dim, subs in enumerate(placement.dims):
            inside = 1
            for sub in reversed(subs):
                inside *= sub.size
                boundaries.add(value, dim, inside)
        _copy_to_partners(value, partners[value], boundaries)
    waiting = deque(node for node in graph.nodes if node in rules)
    queued = set(waiting)
    while waiting:
        node = waiting.popleft()
        queued.discard(node)
        changed = _pass_on(node, rules[node], boundaries)
        for value in list(changed):
            changed |= _copy_to_partners(value, partners[value], boundaries)
        for value in changed:
            for other in touching[value] - queued:
                if other in rules:
                    waiting.append(other)
                    queued.add(other)
    return {value: boundaries.atoms(value) for value in boundaries.found}


def _copy_to_partners(value: Value, partners: list[Value], boundaries: Boundaries) -> set[Value]:
    changed = set()
    for partner in partners:
        for dim, chain in enumerate(boundaries.found[value]):
            if any([boundaries.add(partner, dim, inside) for inside in sorted(chain)]):
                changed.add(partner)
    return changed


def _pass_on(node: fx.Node, rule: Rule, boundaries: Boundaries) -> set[Value]:
    """Make all dims that share a factor agree on what is inside it; the values that changed."""
    if not rule.known:
        return set()
    inner: dict[str, set[int]] = defaultdict(set)
    places = _places(node, rule)
    for value, dim, outside, factor in places:
        for mark in boundaries.found[value][dim]:
            if mark > outside and mark % outside == 0:
                inner[factor].add(mark // outside)
    changed = set()
    for value, dim, outside, factor in places:
        marks = [1, *sorted(m for m in inner[factor] if m < rule.sizes[factor]), rule.sizes[factor]]
        for mark in marks:
            if boundaries.add(value, dim, mark * outside):
                changed.add(value)
    return changed


def _places(node: fx.Node, rule: Rule) -> list[tuple[Value, int, int, str]]:
    """Each occurrence of a factor: the value, the dim, the product of what lies inside it, and its name."""
    found = []
    for value, term in terms(node, rule):
        for dim, factors in enumerate(term):
            inside = 1
            for factor in reversed(factors):
                found.append((value, dim, inside, factor))
                inside *= rule.sizes[factor]
    return found


def terms(node: fx.Node, rule: Rule) -> list[tuple[Value, tuple[tuple[str, ...], ...]]]:
    """The values that go into and come out of a node, each with its term in the rule."""
    pairs = [(resolve(a), term) for a, term in zip(tensor_arguments(node), rule.inputs, strict=True)]
    pairs += [((node, i), term) for i, term in enumerate(rule.outputs) if term is not None]
    return pairs


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a factor that axes may cut, and where it begins in each tensor of the operator."""

    factor: str
    size: int
    leading: bool
    """Whether it is the outermost part of its factor."""
    inputs: tuple[tuple[int, int] | None, ...]
    """For each input, the (dim, atom) that a cut falls on; None where the input does not have the factor."""
    outputs: tuple[tuple[int, int] | None, ...]


def units(rule: Rule, inputs: tuple[Atoms, ...], outputs: tuple[Atoms | None, ...]) -> list[Unit]:
    """The parts of a rule's factors that may be cut, given the atoms of its tensors.

    A factor is divided where all of its occurrences are; one that some tensor cannot divide off is whole.
    """
    occurrences: dict[str, list[tuple[bool, int, int, int, tuple[int, ...]]]] = defaultdict(list)
    for is_output, terms_, atoms in ((False, rule.inputs, inputs), (True, rule.outputs, outputs)):
        for at, (term, tensor_atoms) in enumerate(zip(terms_, atoms, strict=True)):
            if term is None or tensor_atoms is None:
                continue
            for dim, factors in enumerate(term):
                inside = 1
                for factor in reversed(factors):
                    occurrences[factor].append((is_output, at, dim, inside, tensor_atoms[dim]))
                    inside *= rule.sizes[factor]
    found = []
    for factor, where in occurrences.items():
        if factor not in rule.whole and rule.sizes[factor] > 1:
            found += _units_of(factor, rule.sizes[factor], where, len(inputs), len(outputs))
    return found


def _units_of(
    factor: str, size: int, where: list[tuple[bool, int, int, int, tuple[int, ...]]], inputs: int, outputs: int
) -> list[Unit]:
    common: set[int] | None = None
    marks_of = []
    for _, _, _, inside, atoms in where:
        marks = _marks(atoms)
        if inside not in marks or inside * size not in marks:
            return []
        own = {mark // inside for mark in marks if inside <= mark <= inside * size and mark % inside == 0}
        marks_of.append(marks)
        common = own if common is None else common & own
    assert common is not None
    steps = sorted(common)
    found = []
    for low, high in pairwise(steps):
        into: list[tuple[int, int] | None] = [None] * inputs
        out: list[tuple[int, int] | None] = [None] * outputs
        for (is_output, at, dim, inside, _), marks in zip(where, marks_of, strict=True):
            atom = len(marks) - 1 - marks.index(high * inside)
            (out if is_output else into)[at] = (dim, atom)
        found.append(Unit(factor, high // low, high == size, tuple(into), tuple(out)))
    return found[::-1]


def _marks(atoms: tuple[int, ...]) -> list[int]:
    """The boundaries of a dim, from 1 to its size."""
    marks = [1]
    for atom in reversed(atoms):
        marks.append(marks[-1] * atom)
    return marks if marks[-1] != 1 else [1]
