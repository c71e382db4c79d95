"""The states of each decision of the search: strategies of operators, placements of tensors, and what each costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from axograph.cost_model.protocol import Collective, CostModel
from axograph.grid import CUT_ORDER, Grid
from axograph.passes.sharding.arguments import Value, output_tensors, tensor_arguments
from axograph.passes.sharding.atoms import Atoms
from axograph.passes.sharding.constraints import stored_as_asked, unstorable
from axograph.passes.sharding.partners import Partner
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.strategies import Choice, Cut, Options, may_pad, place
from axograph.passes.sharding.survey import Survey
from axograph.passes.sharding.work import local_work
from axograph.placement import Placement

aten = torch.ops.aten

_PASSES_SUMS_ON = {
    aten.add.Tensor,
    aten.sum.dim_IntList,
    aten.neg.default,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten._to_copy.default,
}


@dataclass(slots=True)
class Member:
    """What a node, or a tensor, does in each state of the variable that decides it."""

    variable: Hashable
    inputs: Sequence[tuple[Placement, ...]]
    outputs: Sequence[tuple[Placement | None, ...]]
    cost_s: npt.NDArray[np.float64]
    strategies: Sequence[Strategy] = field(default_factory=list)

    @classmethod
    def tensor(cls, variable: Hashable, placements: Iterable[Placement]) -> Member:
        """A tensor that lies at one of these placements."""
        states: list[tuple[Placement, ...]] = [(p,) for p in placements]
        return cls(variable, states, states, np.zeros(len(states)))


@dataclass(frozen=True, slots=True)
class _Menu:
    """The strategies of operators that have the same ones."""

    strategies: Sequence[Strategy]
    inputs: Sequence[tuple[Placement, ...]]
    outputs: Sequence[tuple[Placement | None, ...]]

    @classmethod
    def of(cls, strategies: Sequence[Strategy]) -> _Menu:
        return cls(strategies, [s.inputs for s in strategies], [s.outputs for s in strategies])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is settled of a search: what some axes do at operators is what they did in an earlier one.

    Parameters may still move to the outermost part of a dim.
    """

    axes: tuple[str, ...] = ()
    strategies: Mapping[fx.Node, Strategy] = field(default_factory=dict)
    values: Mapping[Value, Placement] = field(default_factory=dict)


class States:
    """Makes the members of a search. Operators with equal rules and tensors share their list of strategies."""

    def __init__(
        self,
        survey: Survey,
        model: CostModel,
        *,
        full_outputs: bool = False,
        kept: Kept | None = None,
    ) -> None:
        self.survey = survey
        self.grid = survey.grid
        self.model = model
        self.full_outputs = full_outputs
        self.kept = kept if kept is not None else Kept()
        self._menus: dict[Hashable, _Menu] = {}
        self._costs: dict[Hashable, npt.NDArray[np.float64]] = {}

    # -- operators ----------------------------------------------------------------------------------------------------

    def operator(self, node: fx.Node, variable: Hashable) -> Member:
        """An operator that its own variable decides."""
        options = self.survey.options[node]
        allowed = self._allowed(node, options)
        features: tuple[str, ...] = ()
        if node.target is aten.mm.default:
            features = self.survey.roles.feature_factors(node, options)
        pin = self.survey.pins.get(node)
        key = (_identity(options), tuple(allowed.items()), node.target is aten.mm.default, features, pin)
        menu = self._menus.get(key)
        if menu is None:
            choices = options.choices()
            menu = _Menu.of(self._strategies(node, {a: [choices[i] for i in taken] for a, taken in allowed.items()}))
            self._menus[key] = menu
        return Member(variable, menu.inputs, menu.outputs, self._operator_s(node, menu), menu.strategies)

    def follower(self, node: fx.Node, variable: Hashable, leader: Member, partner: Partner) -> Member:
        """A backward product, decided by its forward one."""
        menu = _Menu.of([self._mirrored(self.survey.options[node], s, partner) for s in leader.strategies])
        return Member(variable, menu.inputs, menu.outputs, self._operator_s(node, menu), menu.strategies)

    def _mirrored(self, options: Options, strategy: Strategy, partner: Partner) -> Strategy:
        """The strategy of a backward product that follows from the forward one's."""
        chosen = {
            axis: Cut(partner.units[choice.unit]) if isinstance(choice, Cut) else None
            for axis, choice in strategy.chosen.items()
        }
        mirrored = options.strategy(chosen, self.grid)
        assert mirrored is not None, "the same factors divide as evenly"
        return mirrored

    def _allowed(self, node: fx.Node, options: Options) -> dict[str, tuple[int, ...]]:
        """For each axis, which of the choices at an operator the search looks at."""
        roles = self.survey.roles
        every = [(i, c) for i, c in enumerate(options.choices()) if self._worthwhile(node, c)]
        batch = tuple(i for i, c in every if isinstance(c, Cut) and roles.is_batch(node, c.unit))
        uncut = tuple(i for i, c in every if not isinstance(c, Cut))
        free = tuple(i for i, c in every if self._is_free(node, c))
        rows = tuple(i for i, c in every if isinstance(c, Cut) and roles.is_row(node, c.unit))
        if options.rule.flops and node not in roles.weighted:  # attention: whatever it can cut
            rows = tuple(i for i, _ in every)
        by_role = {axis: batch or uncut for axis in roles.batch_axes} | {axis: rows or uncut for axis in roles.row_axes}
        allowed = {axis: by_role.get(axis, free) for axis in self.grid.cut_axes}
        for axis in self.kept.axes:
            choice = self.kept.strategies[node].chosen.get(axis)
            allowed[axis] = tuple(i for i, c in every if c == choice and i in allowed[axis]) or allowed[axis]
        return allowed

    def _strategies(self, node: fx.Node, allowed: Mapping[str, Sequence[Choice]]) -> list[Strategy]:
        options = self.survey.options[node]
        found = options.strategies(allowed, self.grid)
        if not found:  # the batch does not divide here: let the cost decide
            found = options.strategies({axis: [*choices, None] for axis, choices in allowed.items()}, self.grid)
        roles = self.survey.roles
        found = _passing_together(found, (*roles.batch_axes, *roles.row_axes))
        if node.target is aten.mm.default:
            found = self._product(node, found, allowed)
        return found

    def _product(self, node: fx.Node, found: list[Strategy], allowed: Mapping[str, Sequence[Choice]]) -> list[Strategy]:
        """The strategies of a product that the scheme and the user's plan leave; `PlanError` where that is none."""
        options, scheme = self.survey.options[node], self.survey.scheme
        features, pin = self.survey.roles.feature_factors(node, options), self.survey.pins.get(node)
        layouts = scheme.filter(found, features, self.grid)
        if pin is None:
            return layouts
        asked = pin.strategies(options, allowed, self.grid)
        if not asked:
            raise pin.refusal(node, options, self.grid)
        if scheme.name is None:
            return scheme.filter(asked, features, self.grid)
        held = [strategy for strategy in layouts if pin.holds(strategy)]
        if not held:
            raise pin.contradiction(node, scheme.name, layouts)
        return held

    def check_pins(self) -> None:
        """Raise `PlanError` where the user's plan asks what a matmul or a parameter cannot have."""
        for node in self.survey.pins:
            self.operator(node, None)
        said = {*self.survey.stored, *self.survey.stored_pins}
        for node, declared in self.survey.placeholders.items():
            if declared.kind == "parameter" and declared.target in said:
                self._parameter(node)

    def _worthwhile(self, node: fx.Node, choice: Choice) -> bool:
        """Partial sums are passed on by operators that only move, scale or add."""
        if isinstance(choice, Cut):
            return True
        return choice is None or self.survey.rules[node].is_view or node.target in _PASSES_SUMS_ON

    def _is_free(self, node: fx.Node, choice: Choice) -> bool:
        """Whether an axis without a role may make a choice: it does not cut what attention needs whole."""
        return not isinstance(choice, Cut) or self.survey.roles.may_cut(node, choice.unit)

    def _operator_s(self, node: fx.Node, menu: _Menu) -> npt.NDArray[np.float64]:
        """The seconds of an operator in each of its strategies; of equal operators, worked out once."""
        rule = self.survey.rules[node]
        if rule.is_view:
            return np.zeros(len(menu.strategies))
        sizes = tuple(a.meta["val"].element_size() for a in tensor_arguments(node))
        made = tuple(None if tensor is None else tensor.dtype for tensor in output_tensors(node))
        key = (id(menu), node.target, rule.flops, sizes, made)
        known = self._costs.get(key)
        if known is None:
            costs = [self.compute_s(node, rule, strategy) for strategy in menu.strategies]
            known = self._costs[key] = np.array(costs)
        return known

    def compute_s(self, node: fx.Node, rule: Rule, strategy: Strategy) -> float:
        """The seconds of an operator in one strategy."""
        tensors = [a.meta["val"] for a in tensor_arguments(node)]
        work = local_work(node, rule, strategy, self.grid)
        return self.model.compute_s(work) + self._statistics_s(rule, strategy, tensors)

    def _statistics_s(self, rule: Rule, strategy: Strategy, tensors: list[torch.Tensor]) -> float:
        cost_s = 0.0
        for factor, count in rule.statistics.items():
            axes = strategy.axes(factor)
            if axes:
                rows = strategy.inputs[0].local_elements(self.grid) * self.grid.extent(axes) / rule.sizes[factor]
                size = rows * max(tensors[0].element_size(), 4)
                reduce = Collective(kind="all_reduce", axes=axes, size_bytes=size)
                cost_s += count * self.model.collective_s(reduce, self.grid)
        return cost_s

    # -- what goes into the graph and comes out of it -----------------------------------------------------------------

    def placeholder(self, node: fx.Node, variable: Hashable) -> Member:
        """An input of the graph."""
        value, kind = (node, 0), self.survey.placeholders[node].kind
        if kind == "tangent":
            return Member.tensor(variable, self.output(value))
        if kind == "user":
            return Member.tensor(variable, [self._batch_cut(value)])
        if kind != "parameter":
            return Member.tensor(variable, [place(self.survey.atoms[value])])
        placements = self._parameter(node)
        size = node.meta["val"].element_size()
        member = Member.tensor(variable, placements)
        member.cost_s = np.array([self.model.hold_s(p.local_elements(self.grid) * size) for p in placements])
        return member

    def _parameter(self, node: fx.Node) -> list[Placement]:
        """All ways to store a parameter that a DTensor can express; data holds copies where it takes the batch."""
        atoms = self.survey.atoms[node, 0]
        places = [(dim, atom) for dim, sizes in enumerate(atoms) for atom, size in enumerate(sizes) if size > 1]
        copies = "data" in self.survey.scheme.batch_axes
        axes = [axis for axis in self.grid.cut_axes if axis != "data" or not copies]
        choices: dict[str, Sequence[tuple[int, int] | None]] = {axis: [None, *places] for axis in axes}
        for axis in self.kept.axes:
            cut = self.kept.values[node, 0].dims
            outermost = [(dim, atom) for dim, atom in places if atom == 0 or axis in cut[dim][atom].axes]
            choices[axis] = [None, *outermost]
        placements = _combinations(atoms, choices, self.grid)
        name = str(self.survey.placeholders[node].target)
        kept, asked = self.survey.stored.get(name), self.survey.stored_pins.get(name)
        if kept is None:
            placements = self.survey.scheme.storage(placements, self.grid)
            return placements if asked is None else stored_as_asked(name, asked, placements, self.grid)
        placements = [p for p in placements if p.simplified() == kept.simplified()]
        if not placements:
            raise unstorable(name, kept, self.grid)
        return placements

    def _batch_cut(self, value: Value) -> Placement:
        """A tensor cut by the batch axes where it has the batch, and whole otherwise."""
        where = self.survey.roles.batch_atom(value)
        cuts = {where: self.survey.roles.batch_axes} if where is not None else {}
        return place(self.survey.atoms[value], cuts)

    def output(self, value: Value) -> list[Placement]:
        """Where an output of the model may lie: a batch stays cut, other dims may be."""
        atoms = self.survey.atoms[value]
        if not atoms or self.full_outputs:
            return [place(atoms)]
        batch = self.survey.roles.batch_atom(value)
        first = [(dim, 0) for dim, sizes in enumerate(atoms) if sizes[0] > 1]
        choices: dict[str, list[tuple[int, int] | None]] = {}
        for axis in self.grid.cut_axes:
            choices[axis] = [batch] if axis in self.survey.roles.batch_axes else [None, *first]
        return _combinations(atoms, choices, self.grid) or [place(atoms)]


def _identity(options: Options) -> Hashable:
    """All that the strategies of an operator follow from, but for what is allowed."""

    def frozen(value: Any) -> Hashable:
        return tuple(value.items()) if isinstance(value, Mapping) else value

    about = tuple(frozen(getattr(options.rule, f.name)) for f in fields(options.rule) if f.name != "lower")
    return (about, options.inputs, options.outputs)


def _passing_together(strategies: list[Strategy], axes: Iterable[str]) -> list[Strategy]:
    """Drop strategies in which some batch axes pass partial sums on while others do not: the last step reduces all."""
    wanted = set(axes)

    def mixed(strategy: Strategy) -> bool:
        cut = {axis for taken in strategy.cuts.values() for axis in taken}
        pending = {axis for p in strategy.inputs for axis, _ in p.partial} & wanted
        return bool(pending) and pending != wanted - cut

    return [strategy for strategy in strategies if not mixed(strategy)]


def _combinations(atoms: Atoms, choices: Mapping[str, Sequence[tuple[int, int] | None]], grid: Grid) -> list[Placement]:
    """The placements in which each axis cuts one of its places, and which a DTensor can express."""
    axes = [axis for axis in CUT_ORDER if axis in choices]
    found: dict[Placement, None] = {}
    for combination in product(*(choices[axis] for axis in axes)):
        cuts: dict[tuple[int, int], list[str]] = {}
        for axis, where in zip(axes, combination, strict=True):
            if where is not None:
                cuts.setdefault(where, []).append(axis)
        if all(_holds(atoms[dim], atom, taken, grid) for (dim, atom), taken in cuts.items()) and _expressible(cuts):
            found[place(atoms, cuts)] = None
    return list(found)


def _holds(sizes: Sequence[int], atom: int, axes: Sequence[str], grid: Grid) -> bool:
    """Whether axes may cut an atom: evenly, or, where it is the whole dim, with a remainder at the innermost axis.

    The shards of a DTensor are cut one axis after the other, each into parts as long as the first but for the last.
    """
    size, outer = sizes[atom], grid.extent(axes[:-1])
    if size % grid.extent(axes) == 0:
        return True
    return len(sizes) == 1 and size % outer == 0 and may_pad(size // outer, grid[axes[-1]])


def _expressible(cuts: Mapping[tuple[int, int], Sequence[str]]) -> bool:
    """A dim is cut at its outermost atom, or inside by one axis alone."""
    by_dim: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for dim, atom in cuts:
        by_dim[dim].append((dim, atom))
    return all(len(places) == 1 and (places[0][1] == 0 or len(cuts[places[0]]) == 1) for places in by_dim.values())
