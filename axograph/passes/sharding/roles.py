"""The roles of axes: which of them cut the batch everywhere, and where the batch is in every tensor.

By default z and data take the batch where they divide it, other rows (positions of a sequence) where they do not, and
x and y whatever is cheapest. The batch is followed from the model's inputs through the rules: a part of a factor that
is the batch in one tensor is it in all. Rows are what a product with a weight does not contract and the weight does
not have; they are followed in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import torch
from torch import fx

from axograph.capture.program import Program
from axograph.grid import CUT_ORDER, Grid
from axograph.passes.sharding.arguments import Value, resolve, tensor_arguments
from axograph.passes.sharding.atoms import Atoms, Unit, terms
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.strategies import Cut, Options

Spot = tuple[Value, int, int]
"""An atom of a dim of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Which axes take the batch, and where it is."""

    batch_axes: tuple[str, ...]
    """The axes that cut the batch wherever it is, in cut order."""
    row_axes: tuple[str, ...] = ()
    """The axes that do not divide the batch, and cut any rows wherever there are some."""
    batch: frozenset[Spot]
    rows: frozenset[Spot] = frozenset()
    """The batch and all other rows."""
    batch_atoms: Mapping[Value, tuple[int, int]]
    """For each tensor with the batch, the first (dim, atom) that is it."""
    weighted: frozenset[fx.Node] = frozenset()
    """The products with a parameter."""
    kept_whole: frozenset[Spot] = frozenset()
    """The dims that attention needs whole (positions, features of a head): cutting them elsewhere saves nothing."""
    notes: tuple[str, ...] = ()
    """Why an axis that usually takes the batch does not."""

    def is_row(self, node: fx.Node, unit: Unit) -> bool:
        """Whether a part of a factor of this operator is the batch, or other rows."""
        return any(spot in self.rows for spot in spots(node, unit))

    def is_batch(self, node: fx.Node, unit: Unit) -> bool:
        """Whether a part of a factor of this operator is the batch."""
        return any(spot in self.batch for spot in spots(node, unit))

    def may_cut(self, node: fx.Node, unit: Unit) -> bool:
        """Whether an axis may cut this part of a factor."""
        places = set(spots(node, unit))
        return bool(places & self.batch) or not places & self.kept_whole

    def batch_atom(self, value: Value) -> tuple[int, int] | None:
        """The (dim, atom) of a tensor that is the batch."""
        return self.batch_atoms.get(value)

    def feature_factors(self, node: fx.Node, options: Options) -> tuple[str, ...]:
        """The factors of an operator that have nothing of the batch."""
        rows = {unit.factor for unit in options.units if self.is_batch(node, unit)}
        return tuple(factor for factor in options.rule.sizes if factor not in rows)


def find_roles(
    program: Program,
    options: Mapping[fx.Node, Options],
    atoms: Mapping[Value, Atoms],
    grid: Grid,
    scheme: Scheme,
    batch_dims: Mapping[int, int | None],
) -> Roles:
    """Follow the batch from the inputs. `batch_dims` gives its dim for each user input by index, None for none."""
    links = Links(options)
    starts: list[Spot] = []
    size = 0
    for node, declared in zip(program.placeholders(), program.inputs, strict=True):
        dim = batch_dims.get(int(declared.target)) if declared.kind == "user" else None
        if dim is not None:
            starts.append(((node, 0), dim, 0))
            size = atoms[node, 0][dim][0]
    weighted = _weighted(program, options)
    rows, features = set[Spot](), set[Spot]()
    for node in weighted:
        for unit in options[node].units:
            (rows if unit.factor == "m" else features).update(spots(node, unit))
    batch = links.spread(starts)
    batch_axes = _dividing(scheme, grid, size)
    others = [axis for axis in scheme.batch_axes if grid[axis] > 1 and axis not in batch_axes]
    row_axes = _dividing_rows([options[node] for node in weighted], grid, batch_axes, others)
    batch_atoms = {value: (dim, atom) for value, dim, atom in sorted(batch, key=lambda spot: spot[1:], reverse=True)}
    return Roles(
        batch_axes=batch_axes,
        row_axes=row_axes,
        batch=batch,
        rows=batch | (links.spread(rows) - links.spread(features)),
        batch_atoms=batch_atoms,
        weighted=weighted,
        kept_whole=frozenset() if len(others) > len(row_axes) else links.spread(_kept_whole(options)),
        notes=tuple(_note(axis, grid, size, batch_axes, axis in row_axes) for axis in others),
    )


class Links:
    """Which parts of dims are the same one."""

    def __init__(self, options: Mapping[fx.Node, Options]) -> None:
        self.sets = nx.utils.UnionFind()
        for node, own in options.items():
            for unit in own.units:
                self.sets.union(*spots(node, unit))
        self.members: dict[Spot, list[Spot]] = defaultdict(list)
        for spot in self.sets.parents:
            self.members[self.sets[spot]].append(spot)

    def spread(self, starts: Iterable[Spot]) -> frozenset[Spot]:
        """These spots and all that are linked to them."""
        roots = {self.sets[spot] for spot in starts}
        return frozenset(spot for root in roots for spot in self.members.get(root, (root,)))


def _weighted(program: Program, options: Mapping[fx.Node, Options]) -> frozenset[fx.Node]:
    """The products whose right factor is a parameter, seen through views and casts."""
    inputs = zip(program.placeholders(), program.inputs, strict=True)
    parameters = {node for node, declared in inputs if declared.kind == "parameter"}

    def source(node: fx.Node) -> fx.Node:
        while node.op == "call_function" and len(tensor_arguments(node)) == 1:
            (node,) = tensor_arguments(node)
        return node

    products = [node for node in options if node.target is torch.ops.aten.mm.default]
    return frozenset(node for node in products if source(tensor_arguments(node)[1]) in parameters)


def _dividing(scheme: Scheme, grid: Grid, size: int) -> tuple[str, ...]:
    """The axes that take a batch of this size, in cut order."""
    axes: list[str] = []
    for axis in scheme.batch_axes:
        if grid[axis] > 1 and size and size % grid.extent((*axes, axis)) == 0:
            axes.append(axis)
    return tuple(axis for axis in CUT_ORDER if axis in axes)


def _dividing_rows(
    products: Sequence[Options], grid: Grid, taken: tuple[str, ...], axes: Sequence[str]
) -> tuple[str, ...]:
    """The axes, of these, that can cut the rows of the largest product, beside the axes that cut the batch."""
    largest = max(products, key=lambda own: own.rule.sizes["m"], default=None)
    found: tuple[str, ...] = ()
    if largest is not None:
        cuts = [Cut(unit) for unit in largest.units if unit.factor == "m"]
        for axis in axes:
            if largest.strategies(dict.fromkeys((*taken, *found, axis), cuts), grid):
                found = (*found, axis)
    return found


def _note(axis: str, grid: Grid, size: int, taken: tuple[str, ...], rows: bool) -> str:
    """Why an axis does not take the batch, and what it does."""
    by = f" already cut by {' and '.join(taken)}" if taken else ""
    what = f"the batch of {size}{by}" if size else "an input without a batch dim"
    instead = "it cuts other rows, or the batch unevenly" if rows else "it cuts other dims where that is cheapest"
    return f"{axis}={grid[axis]} does not divide {what}; {instead}"


def _kept_whole(options: Mapping[fx.Node, Options]) -> Iterable[Spot]:
    """The dims that an operator with much work cannot have cut."""
    for node, own in options.items():
        if not own.rule.flops:
            continue
        for (value, term), atoms in zip(terms(node, own.rule), _all_atoms(own), strict=True):
            for dim, factors in enumerate(term):
                if set(factors) & own.rule.whole:
                    yield from ((value, dim, atom) for atom in range(len(atoms[dim])))


def _all_atoms(options: Options) -> list[Atoms]:
    return [*options.inputs, *(atoms for atoms in options.outputs if atoms is not None)]


def spots(node: fx.Node, unit: Unit) -> Iterable[Spot]:
    """Where a part of a factor is: in each tensor of the operator that has it."""
    for argument, where in zip(tensor_arguments(node), unit.inputs, strict=True):
        if where is not None:
            yield (resolve(argument), *where)
    for i, where in enumerate(unit.outputs):
        if where is not None:
            yield ((node, i), *where)
