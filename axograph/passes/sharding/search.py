"""The search: a strategy for every operator and a placement for every tensor that several use, at least cost.

Variables are the operators, the parameters, the outputs, and each tensor with several users (so that a reshard which
they share is paid once). Operators that stand at the same place in identical layers share one variable. The sum of
compute and of reshards is minimised exactly, by variable elimination.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import fx

from axograph.capture.program import DTYPE_NAMES, Output, Program, facts
from axograph.cost_model.protocol import Collective, Compute, CostModel
from axograph.grid import CUT_ORDER, Grid
from axograph.passes.sharding.arguments import (
    Value,
    is_pick,
    output_tensors,
    resolve,
    tensor_arguments,
    tensor_of,
)
from axograph.passes.sharding.atoms import Atoms, find_atoms, terms
from axograph.passes.sharding.elimination import Problem, Solution, minimize
from axograph.passes.sharding.partners import Partner, find_partners
from axograph.passes.sharding.reshard import Resharder
from axograph.passes.sharding.roles import Roles, find_roles
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.rules import rule_of
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.strategies import Choice, Cut, Options, place
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the search decided."""

    strategies: dict[fx.Node, Strategy]
    values: dict[Value, Placement]
    """Where each tensor lies for its users: inputs of the graph, and tensors with several users."""
    results: tuple[Placement | None, ...]
    """Where each output of the graph lies."""
    cost_s: float
    certificate: str
    """"optimal", or what is known of the distance to the optimum."""
    roles: Roles
    rules: dict[fx.Node, Rule]


@dataclass(slots=True)
class _Member:
    """What a node, or a tensor, does in each state of the variable that decides it."""

    variable: Hashable
    inputs: list[tuple[Placement, ...]]
    outputs: list[tuple[Placement | None, ...]]
    cost_s: np.ndarray[Any, np.dtype[np.float64]]
    strategies: list[Strategy] = field(default_factory=list)

    @classmethod
    def tensor(cls, variable: Hashable, placements: Iterable[Placement]) -> _Member:
        """A tensor that lies at one of these placements."""
        states: list[tuple[Placement, ...]] = [(p,) for p in placements]
        return cls(variable, states, list(states), np.zeros(len(states)))


class Search:
    """The cheapest assignment for one program on one grid."""

    def __init__(
        self,
        program: Program,
        grid: Grid,
        model: CostModel,
        scheme: Scheme,
        batch_dims: Mapping[int, int | None],
        *,
        full_outputs: bool = False,
        stored: Mapping[str, Placement] | None = None,
    ):
        self.program = program
        self.grid = grid
        self.model = model
        self.scheme = scheme
        self.full_outputs = full_outputs
        self.stored = stored or {}
        self.resharder = Resharder(grid, model)
        self.nodes = [n for n in program.graph.nodes if n.op == "call_function" and not is_pick(n)]
        self.rules = {node: rule_of(node) for node in self.nodes}
        self.placeholders = dict(zip(program.placeholders(), program.inputs, strict=True))
        self.atoms = find_atoms(program.graph, self.rules, self._tied(), self._already_stored())
        self.options = {node: self._options(node) for node in self.nodes}
        self.roles = find_roles(program, self.options, self.atoms, grid, scheme, batch_dims)
        self.partners = find_partners(self.options)
        self.users = self._users()
        self.keys = self._keys()
        self.members: dict[Hashable, _Member] = {}
        self.member_of: dict[fx.Node, Hashable] = {}
        self.shared: dict[Value, Hashable] = {}

    # -- what there is to decide ------------------------------------------------------------------------------------

    def _tied(self) -> list[tuple[Value, Value]]:
        """A gradient lies as its parameter does, and a tangent as its output."""
        tied = []
        inputs = {(declared.kind, declared.target): node for node, declared in self.placeholders.items()}
        for result, declared in zip(self.program.results(), self.program.outputs, strict=True):
            if result is None:
                continue
            partner = None
            if declared.kind == "gradient" and isinstance(declared.target, str):
                partner = inputs["parameter", declared.target]
            elif declared.kind == "user":
                partner = inputs.get(("tangent", declared.target))
            if partner is not None:
                tied.append((resolve(result), (partner, 0)))
        return tied

    def _already_stored(self) -> dict[Value, Placement]:
        """The parameters that an earlier program of this model has placed."""
        return {
            (node, 0): self.stored[str(declared.target)]
            for node, declared in self.placeholders.items()
            if declared.kind == "parameter" and declared.target in self.stored
        }

    def _options(self, node: fx.Node) -> Options:
        rule = self.rules[node]
        inputs = tuple(self.atoms[resolve(argument)] for argument in tensor_arguments(node))
        outputs = tuple(self.atoms.get((node, i)) if t is not None else None for i, t in enumerate(rule.outputs))
        return Options(rule, inputs, outputs)

    def _users(self) -> dict[Value, list[tuple[fx.Node, int]]]:
        """For each value, the operators that take it and at which place; a place of -1 - i is output i of the graph."""
        users: dict[Value, list[tuple[fx.Node, int]]] = defaultdict(list)
        for node in self.nodes:
            for place_, argument in enumerate(tensor_arguments(node)):
                users[resolve(argument)].append((node, place_))
        output = self.program.graph.output_node()
        for i, result in enumerate(self.program.results()):
            if result is not None:
                users[resolve(result)].append((output, -1 - i))
        return users

    def _keys(self) -> dict[fx.Node, Hashable]:
        """A key for each operator, equal for operators at the same place of identical layers.

        The place is the module's path without its numbers, and how many such operators came before in that module.
        Additions of gradients belong to no module; their place is where their arguments come from.
        """
        keys: dict[fx.Node, Hashable] = {}
        numbers: dict[Hashable, int] = {}
        counted: Counter[Hashable] = Counter()
        for node in self.nodes:
            about = facts(node)
            atoms = tuple(self.atoms[value] for value, _ in terms(node, self.rules[node]))
            if about.path:
                here = (about.path, about.phase, str(node.target))
                counted[here] += 1
                place_: Hashable = (re.sub(r"\d+", "#", about.path), about.phase, counted[here])
            else:
                sources = [resolve(argument) for argument in tensor_arguments(node)]
                place_ = tuple((numbers.get(keys.get(maker), maker.name), output) for maker, output in sources)
            keys[node] = (place_, str(node.target), atoms, str(self.rules[node]))
            numbers.setdefault(keys[node], len(numbers))
        return keys

    # -- the states of each decision ----------------------------------------------------------------------------------

    def run(self) -> Assignment:
        """Build the problem, solve it, and read the answer."""
        counts: Counter[Hashable] = Counter()
        for node in self.nodes:
            key = ("op", self.keys[node])
            self.member_of[node] = key
            counts[key] += 1
            if key not in self.members:
                self.members[key] = self._operator(node)
        for node, declared in self.placeholders.items():
            is_tangent = declared.kind == "tangent"
            key = ("user output" if is_tangent else declared.kind, declared.target)
            self.member_of[node] = key
            counts[key] += 1
            if key not in self.members:
                self.members[key] = self._placeholder(key, node, declared.kind)
        results = [self._result(i, declared) for i, declared in enumerate(self.program.outputs)]
        self._share(counts)
        problem = Problem()
        for key, member in self.members.items():
            problem.add_variable(member.variable, member.cost_s * max(counts[key], 1))
        self._connect(problem, results)
        solution = minimize(problem)
        assert np.isfinite(solution.cost), "every operator can run on whole tensors"
        return self._read(solution, results)

    def _operator(self, node: fx.Node) -> _Member:
        options = self.options[node]
        partner = self.partners.get(node)
        if partner is None:
            variable: Hashable = ("op", self.keys[node])
            strategies = self._strategies(node, options)
        else:
            variable = ("op", self.keys[partner.forward])
            strategies = [self._mirrored(options, s, partner) for s in self.members[variable].strategies]
        costs = np.array([self._compute_s(node, options, strategy) for strategy in strategies])
        return _Member(variable, [s.inputs for s in strategies], [s.outputs for s in strategies], costs, strategies)

    def _mirrored(self, options: Options, strategy: Strategy, partner: Partner) -> Strategy:
        """The strategy of a backward product that follows from the forward one's."""
        chosen = {
            axis: Cut(partner.units[choice.unit]) if isinstance(choice, Cut) else None
            for axis, choice in strategy.chosen.items()
        }
        mirrored = options.strategy(chosen, self.grid)
        assert mirrored is not None, "the same factors divide as evenly"
        return mirrored

    def _strategies(self, node: fx.Node, options: Options) -> list[Strategy]:
        every = [choice for choice in options.choices() if self._worthwhile(node, choice)]
        allowed: dict[str, Sequence[Choice]] = {}
        for axis in self.grid.cut_axes:
            if axis in self.roles.batch_axes:
                cuts = [c for c in every if isinstance(c, Cut) and self.roles.is_batch(node, c.unit)]
                allowed[axis] = cuts or [c for c in every if not isinstance(c, Cut)]
            else:
                allowed[axis] = every
        found = options.strategies(allowed, self.grid)
        if not found:  # the batch does not divide here: let the cost decide
            allowed = {axis: [*choices, None] for axis, choices in allowed.items()}
            found = options.strategies(allowed, self.grid)
        found = _passing_together(found, self.roles.batch_axes)
        if node.target is aten.mm.default:
            found = self.scheme.filter(found, self.roles.feature_factors(node, options), self.grid)
        return found

    def _worthwhile(self, node: fx.Node, choice: Choice) -> bool:
        """Partial sums are passed on by operators that only move, scale or add them; not cut: what attention needs whole."""
        if isinstance(choice, Cut):
            return self.roles.may_cut(node, choice.unit)
        return choice is None or self.rules[node].is_view or node.target in _PASSES_SUMS_ON

    def _compute_s(self, node: fx.Node, options: Options, strategy: Strategy) -> float:
        rule = options.rule
        if rule.is_view:
            return 0.0
        tensors = [a.meta["val"] for a in tensor_arguments(node)]
        made = output_tensors(node)
        size = sum(
            p.local_elements(self.grid) * t.element_size() for p, t in zip(strategy.inputs, tensors, strict=True)
        )
        for placed, tensor in zip(strategy.outputs, made, strict=True):
            if placed is not None and tensor is not None:
                size += placed.local_elements(self.grid) * tensor.element_size()
        share = self.grid.extent({axis for axes in strategy.cuts.values() for axis in axes})
        result = next(tensor for tensor in made if tensor is not None)
        dtype = DTYPE_NAMES.get(result.dtype, "f32")
        work = Compute(op=str(node.target), flops=rule.flops / share, size_bytes=float(size), dtype=dtype)
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

    def _placeholder(self, key: Hashable, node: fx.Node, kind: str) -> _Member:
        if kind == "tangent":
            return _Member.tensor(key, self._outputs((node, 0)))
        if kind == "user":
            return _Member.tensor(key, [self._batch_cut((node, 0))])
        if kind != "parameter":
            return _Member.tensor(key, [place(self.atoms[node, 0])])
        placements = self._stored(self.atoms[node, 0])
        kept = self.stored.get(str(self.placeholders[node].target))
        if kept is None:
            placements = self.scheme.storage(placements, self.grid)
        else:
            placements = [p for p in placements if p.simplified() == kept.simplified()]
            assert placements, f"{node} can be stored as {kept} again"
        size = node.meta["val"].element_size()
        member = _Member.tensor(key, placements)
        member.cost_s = np.array([self.model.hold_s(p.local_elements(self.grid) * size) for p in placements])
        return member

    def _stored(self, atoms: Atoms) -> list[Placement]:
        """All ways to store a parameter that a DTensor can express; data always holds copies."""
        places = [(dim, atom) for dim, sizes in enumerate(atoms) for atom, size in enumerate(sizes) if size > 1]
        axes = [axis for axis in self.grid.cut_axes if axis != "data"]
        return _combinations(atoms, {axis: [None, *places] for axis in axes}, self.grid)

    def _batch_cut(self, value: Value) -> Placement:
        """A tensor cut by the batch axes where it has the batch, and whole otherwise."""
        where = self.roles.batch_atom(value)
        cuts = {where: self.roles.batch_axes} if where is not None else {}
        return place(self.atoms[value], cuts)

    def _outputs(self, value: Value) -> list[Placement]:
        """Where an output of the model may lie: a batch stays cut, other dims may be."""
        atoms = self.atoms[value]
        if not atoms or self.full_outputs:
            return [place(atoms)]
        batch = self.roles.batch_atom(value)
        first = [(dim, 0) for dim, sizes in enumerate(atoms) if sizes[0] > 1]
        choices: dict[str, list[tuple[int, int] | None]] = {}
        for axis in self.grid.cut_axes:
            choices[axis] = [batch] if axis in self.roles.batch_axes else [None, *first]
        return _combinations(atoms, choices, self.grid) or [place(atoms)]

    def _result(self, index: int, declared: Output) -> Hashable:
        """The variable that an output of the graph must agree with."""
        result = self.program.results()[index]
        if declared.kind == "gradient" and isinstance(declared.target, str):
            return ("parameter", declared.target)
        key: Hashable = ("user output", declared.target) if declared.kind == "user" else ("result", index)
        if key not in self.members and result is not None:
            value = resolve(result)
            whole = declared.kind != "user" or tensor_of(value).dim() == 0
            self.members[key] = _Member.tensor(key, [place(self.atoms[value])] if whole else self._outputs(value))
        return key

    # -- how they depend on each other --------------------------------------------------------------------------------

    def _share(self, counts: Counter[Hashable]) -> None:
        """Add a variable for each tensor with several users: where it lies for all of them."""
        domains: dict[Hashable, dict[Placement, None]] = defaultdict(dict)
        for value, users in self.users.items():
            if len(users) < 2 or value[0].op == "placeholder":
                continue
            key = ("tensor", self.member_of[value[0]], value[1])
            self.shared[value] = key
            counts[key] += 1
            states = domains[key]
            for outputs in self.members[self.member_of[value[0]]].outputs:
                made = outputs[value[1]]
                assert made is not None
                states[made.reduced()] = None
            for node, at in users:
                if at >= 0:
                    for inputs in self.members[self.member_of[node]].inputs:
                        states[inputs[at]] = None
        for key, states in domains.items():
            self.members[key] = _Member.tensor(key, states)

    def _connect(self, problem: Problem, results: Sequence[Hashable]) -> None:
        """Add the costs of the reshards between what makes a tensor and what uses it."""
        counts: Counter[tuple[Hashable, int, Hashable, int]] = Counter()
        example: dict[tuple[Hashable, int, Hashable, int], Value] = {}

        def edge(producer: Hashable, output: int, consumer: Hashable, at: int, value: Value) -> None:
            key = (producer, output, consumer, at)
            example[key] = value
            counts[key] += 1

        for value, users in self.users.items():
            source, output = self.member_of[value[0]], value[1]
            if value in self.shared:
                edge(source, output, self.shared[value], 0, value)
                source, output = self.shared[value], 0
            for node, at in users:
                if at >= 0:
                    edge(source, output, self.member_of[node], at, value)
                else:
                    edge(source, output, results[-1 - at], 0, value)
        for key, count in counts.items():
            producer, output, consumer, at = key
            if producer != consumer or self.members[producer].strategies:
                first, second = self.members[producer], self.members[consumer]
                table = count * self._table(first, output, second, at, example[key])
                problem.add_pair(first.variable, second.variable, table)

    def _table(
        self, producer: _Member, output: int, consumer: _Member, at: int, value: Value
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seconds of the reshard for each pair of states, each pair of placements priced once."""
        tensor = tensor_of(value)
        dtype, size = DTYPE_NAMES.get(tensor.dtype, "f32"), tensor.element_size()
        sources = [outputs[output] for outputs in producer.outputs]
        targets = [inputs[at] for inputs in consumer.inputs]
        rows = {p: i for i, p in enumerate(dict.fromkeys(sources))}
        columns = {p: i for i, p in enumerate(dict.fromkeys(targets))}
        priced = np.empty((len(rows), len(columns)))
        for a, i in rows.items():
            assert a is not None
            for b, j in columns.items():
                priced[i, j] = self.resharder.cost_s(a, b, dtype, size)
        table: np.ndarray[Any, np.dtype[np.float64]] = priced[
            np.ix_([rows[p] for p in sources], [columns[p] for p in targets])
        ]
        return table

    def _read(self, solution: Solution, results: Sequence[Hashable]) -> Assignment:
        def placed(key: Hashable) -> Placement:
            member = self.members[key]
            found = member.outputs[solution.states[member.variable]][0]
            assert found is not None
            return found

        values = {(node, 0): placed(self.member_of[node]) for node in self.placeholders}
        values |= {value: placed(key) for value, key in self.shared.items()}
        strategies = {}
        for node in self.nodes:
            member = self.members[self.member_of[node]]
            strategies[node] = member.strategies[solution.states[member.variable]]
        ends = tuple(
            placed(key) if result is not None else None
            for key, result in zip(results, self.program.results(), strict=True)
        )
        return Assignment(
            strategies=strategies,
            values=values,
            results=ends,
            cost_s=solution.cost,
            certificate="optimal",
            roles=self.roles,
            rules=self.rules,
        )


def _passing_together(strategies: list[Strategy], axes: Iterable[str]) -> list[Strategy]:
    """Drop strategies in which some batch axes pass partial sums on while others do not: the last step reduces all."""
    wanted = set(axes)

    def mixed(strategy: Strategy) -> bool:
        cut = {axis for taken in strategy.cuts.values() for axis in taken}
        pending = {axis for p in strategy.inputs for axis, _ in p.partial} & wanted
        return bool(pending) and pending != wanted - cut

    return [strategy for strategy in strategies if not mixed(strategy)]


def _combinations(atoms: Atoms, choices: Mapping[str, Sequence[tuple[int, int] | None]], grid: Grid) -> list[Placement]:
    """The placements in which each axis cuts one of its places evenly, and which a DTensor can express."""
    axes = [axis for axis in CUT_ORDER if axis in choices]
    found: dict[Placement, None] = {}
    for combination in product(*(choices[axis] for axis in axes)):
        cuts: dict[tuple[int, int], list[str]] = {}
        for axis, where in zip(axes, combination, strict=True):
            if where is not None:
                cuts.setdefault(where, []).append(axis)
        even = all(atoms[dim][atom] % grid.extent(taken) == 0 for (dim, atom), taken in cuts.items())
        if even and _expressible(cuts):
            found[place(atoms, cuts)] = None
    return list(found)


def _expressible(cuts: Mapping[tuple[int, int], Sequence[str]]) -> bool:
    """A dim is cut at its outermost atom, or inside by one axis alone."""
    by_dim: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for dim, atom in cuts:
        by_dim[dim].append((dim, atom))
    return all(len(places) == 1 and (places[0][1] == 0 or len(cuts[places[0]]) == 1) for places in by_dim.values())
