"""The strategies of an operator: what each axis of the grid may do to it, and what placements follow."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from torch import fx

from axograph.grid import AXES, CUT_ORDER, Grid
from axograph.passes.sharding.arguments import Value, resolve, tensor_arguments
from axograph.passes.sharding.atoms import Atoms, Unit, units
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.placement import Placement, SubDim


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis cuts a part of a factor."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Pass:
    """An axis has these inputs as partial sums, and passes that on."""

    inputs: frozenset[int]


MOST_PADDED = 1.6
"""The most that padding may lengthen a dim: 5 rows over 4 ranks, which become 8."""

Choice = Cut | Pass | None
"""What one axis does at an operator; None: every rank along it does the same work."""


@dataclass(slots=True)
class Options:
    """All choices at one operator."""

    rule: Rule
    inputs: tuple[Atoms, ...]
    outputs: tuple[Atoms | None, ...]
    units: list[Unit] = field(init=False)

    def __post_init__(self) -> None:
        found = units(self.rule, self.inputs, self.outputs)
        self.units = [unit for unit in found if unit.leading or unit.factor not in self.rule.leading]

    def choices(self) -> list[Choice]:
        """What an axis may do, whatever its size."""
        return [None, *(Cut(unit) for unit in self.units), *(Pass(inputs) for inputs in self.rule.linear)]

    def strategy(self, chosen: Mapping[str, Choice], grid: Grid) -> Strategy | None:
        """The placements that follow from a choice for each axis; None where a cut is not possible."""
        cut_inputs: list[dict[tuple[int, int], list[str]]] = [{} for _ in self.inputs]
        cut_outputs: list[dict[tuple[int, int], list[str]]] = [{} for _ in self.outputs]
        partial_inputs: list[list[tuple[str, str]]] = [[] for _ in self.inputs]
        partial_outputs: list[list[tuple[str, str]]] = [[] for _ in self.outputs]
        cuts: dict[str, list[str]] = {}
        taken: dict[Unit, list[str]] = {}
        for axis in CUT_ORDER:
            choice = chosen.get(axis)
            if isinstance(choice, Pass):
                for i in choice.inputs:
                    partial_inputs[i].append((axis, "sum"))
                for i, pending in enumerate(partial_outputs):
                    if i not in self.rule.copied:
                        pending.append((axis, "sum"))
            elif isinstance(choice, Cut):
                taken.setdefault(choice.unit, []).append(axis)
                cuts.setdefault(choice.unit.factor, []).append(axis)
                for place, table in zip(choice.unit.inputs, cut_inputs, strict=True):
                    if place is not None:
                        table.setdefault(place, []).append(axis)
                self._cut_outputs(axis, choice.unit, cut_outputs, partial_outputs)
        if not all(self._fits(unit, grid.extent(axes)) for unit, axes in taken.items()):
            return None
        inputs = _place_all(self.inputs, cut_inputs, partial_inputs)
        outputs = _place_all(self.outputs, cut_outputs, partial_outputs)
        return Strategy(
            inputs=tuple(p for p in inputs if p is not None),
            outputs=outputs,
            cuts={factor: tuple(axes) for factor, axes in cuts.items()},
            parts=tuple((unit.size, tuple(axes)) for unit, axes in taken.items()),
            chosen=dict(chosen),
        )

    def _fits(self, unit: Unit, ranks: int) -> bool:
        """Whether a part of a factor can be cut over this many ranks, in all tensors that have it."""
        tensors = [*zip(self.inputs, unit.inputs, strict=True), *zip(self.outputs, unit.outputs, strict=True)]
        sizes = {atoms[at[0]][at[1]] for atoms, at in tensors if atoms is not None and at is not None}
        if all(size % ranks == 0 for size in sizes):
            return True
        return sizes == {unit.size} and self.rule.pads(unit.factor) and may_pad(unit.size, ranks)

    def _cut_outputs(
        self,
        axis: str,
        unit: Unit,
        cut_outputs: list[dict[tuple[int, int], list[str]]],
        partial_outputs: list[list[tuple[str, str]]],
    ) -> None:
        for i, place in enumerate(unit.outputs):
            if place is not None:
                cut_outputs[i].setdefault(place, []).append(axis)
            elif unit.factor not in self.rule.statistics and i not in self.rule.copied and self.outputs[i] is not None:
                partial_outputs[i].append((axis, self.rule.reduction))

    def strategies(self, allowed: Mapping[str, Sequence[Choice]], grid: Grid) -> list[Strategy]:
        """All strategies in which each axis makes one of the choices allowed to it."""
        axes = list(allowed)
        found: dict[tuple[object, ...], Strategy] = {}
        for combination in product(*(allowed[axis] for axis in axes)):
            made = self.strategy(dict(zip(axes, combination, strict=True)), grid)
            if made is not None:
                found.setdefault((made.inputs, made.outputs), made)
        return list(found.values())


def find_options(rules: Mapping[fx.Node, Rule], atoms: Mapping[Value, Atoms]) -> dict[fx.Node, Options]:
    """The options of each operator; those with the same rule, over the same atoms, share theirs."""
    known: dict[Hashable, Options] = {}
    found = {}
    for node, rule in rules.items():
        inputs = tuple(atoms[resolve(argument)] for argument in tensor_arguments(node))
        outputs = tuple(atoms.get((node, i)) if t is not None else None for i, t in enumerate(rule.outputs))
        key = (id(rule), inputs, outputs)
        if key not in known:
            known[key] = Options(rule, inputs, outputs)
        found[node] = known[key]
    return found


def may_pad(size: int, ranks: int) -> bool:
    """Whether so many positions are worth an uneven cut: every rank has work, and most of it is not on padding."""
    return size >= ranks and -(-size // ranks) * ranks <= MOST_PADDED * size


def _place_all(
    atoms: Sequence[Atoms | None],
    cuts: list[dict[tuple[int, int], list[str]]],
    partial: list[list[tuple[str, str]]],
) -> tuple[Placement | None, ...]:
    return tuple(
        None if tensor is None else place(tensor, table, pending)
        for tensor, table, pending in zip(atoms, cuts, partial, strict=True)
    )


def place(
    atoms: Atoms, cuts: Mapping[tuple[int, int], Sequence[str]] | None = None, partial: Sequence[tuple[str, str]] = ()
) -> Placement:
    """The placement of a tensor with these atoms, cut at (dim, atom) by these axes."""
    cuts = cuts or {}
    dims = tuple(
        tuple(SubDim(size, tuple(cuts.get((dim, atom), ()))) for atom, size in enumerate(sizes))
        for dim, sizes in enumerate(atoms)
    )
    order = {axis: i for i, axis in enumerate(AXES)}
    return Placement(dims, tuple(sorted(partial, key=lambda item: order[item[0]])))
