"""Explains the place of one matmul: what moves around it, the best plan that places it otherwise, what was ruled out.

Nothing is worked out before somebody asks: then the search is built again, and solved without the placement chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import fx

from axograph.capture.program import DTYPE_NAMES, facts
from axograph.explanation import Explanation, Move, Phase, RuledOut
from axograph.passes.sharding.arguments import Value, resolve, tensor_arguments, tensor_of
from axograph.passes.sharding.elimination import Problem, minimize
from axograph.passes.sharding.partners import Partner
from axograph.passes.sharding.rule import Strategy
from axograph.passes.sharding.search import Assignment, Search, certificate
from axograph.passes.sharding.strategies import Cut, Pass
from axograph.placement import Placement
from axograph.plan import FACTORS, MatmulPlacement

_TENSORS = {frozenset("mk"): "I", frozenset("kn"): "W", frozenset("mn"): "O"}
"""The tensors of O = I W by their factors."""


@dataclass(slots=True)
class Explainer:
    """Explains the matmuls of one assignment."""

    make_search: Callable[[], Search]
    """Builds the search again, for the program with the nodes of the assignment."""
    decided: Assignment
    matmuls: dict[str, MatmulPlacement]
    _asked: tuple[Search, Problem] | None = field(default=None, init=False, repr=False)

    def __call__(self, path: str) -> Explanation:
        """The explanation of a matmul of the plan."""
        if self._asked is None:
            search = self.make_search()
            self._asked = search, search.problem()
        search, problem = self._asked
        placed, node = self.matmuls[path], search.survey.matmuls[path]
        runner_up, cost_s, sure = self._runner_up(search, problem, node)
        alike = (other for other, same in search.survey.matmuls.items() if same is not node)
        key = search.member_of[node]
        return Explanation(
            path=path,
            placement=str(placed),
            shape=placed.shape,
            weight=placed.weight,
            stored=placed.stored.simplified(search.survey.grid) if placed.stored is not None else None,
            plan_cost_s=self.decided.cost_s,
            together=tuple(p for p in alike if search.member_of[search.survey.matmuls[p]] == key),
            compute_s=sum(self._compute_s(search, product) for product in (node, *_backward(search, node))),
            moves=tuple(_Moves(search, self.decided).around(node)),
            runner_up=runner_up,
            runner_up_cost_s=cost_s,
            runner_up_certificate=sure,
            ruled_out=tuple(_ruled_out(search, node)),
        )

    def _compute_s(self, search: Search, node: fx.Node) -> float:
        member = search.members[search.member_of[node]]
        return float(member.cost_s[list(member.strategies).index(self.decided.strategies[node])])

    def _runner_up(self, search: Search, problem: Problem, node: fx.Node) -> tuple[str | None, float | None, str]:
        """The best plan in which the matmul, and those decided with it, lie otherwise: where, the cost, how sure."""
        member = search.members[search.member_of[node]]
        chosen = _text(self.decided.strategies[node])
        same = [_text(strategy) == chosen for strategy in member.strategies]
        without = np.where(same, np.inf, problem.unary[member.variable])
        if not np.isfinite(without).any():
            return None, None, ""
        found = minimize(Problem({**problem.unary, member.variable: without}, problem.pair))
        if not np.isfinite(found.cost):
            return None, None, ""
        return _text(member.strategies[found.states[member.variable]]), found.cost, certificate(found)


def _text(strategy: Strategy) -> str:
    """Where a product lies, as a plan prints it."""
    axes = {factor: strategy.axes(factor) for factor in FACTORS}
    return str(MatmulPlacement(path="", weight="", m=axes["m"], k=axes["k"], n=axes["n"]))


def _backward(search: Search, node: fx.Node) -> list[fx.Node]:
    """The backward products of a forward one."""
    return [other for other, partner in search.survey.partners.items() if partner.forward is node]


# -- moves ------------------------------------------------------------------------------------------------------------


class _Moves:
    """The reshards between a product and the operators that make its inputs and take its output; views in between."""

    def __init__(self, search: Search, decided: Assignment) -> None:
        self.survey = search.survey
        self.resharder = search.resharder
        self.model = search.states.model
        self.decided = decided
        self.again_at, self.again = search.survey.remade()
        self.seen: set[tuple[object, ...]] = set()

    def around(self, node: fx.Node) -> Iterator[Move]:
        """The moves of a forward product and of its backward ones, each once."""
        yield from self._product(node, ("I", "W", "O"))
        for product in _backward_in_order(self.survey.nodes, self.survey.partners, node):
            yield from self._product(product, _names(self.survey.partners[product]))

    def _product(self, node: fx.Node, names: tuple[str, str, str]) -> Iterator[Move]:
        for at, argument in enumerate(tensor_arguments(node)):
            yield from self._into(resolve(argument), self.decided.strategies[node].inputs[at], (node, at), names[at])
        yield from self._out_of((node, 0), names[2])

    def _into(self, value: Value, target: Placement, user: tuple[fx.Node, int], name: str) -> Iterator[Move]:
        maker = value[0]
        if self._carries(maker):
            source = resolve(tensor_arguments(maker)[0])
            yield from self._into(source, self.decided.strategies[maker].inputs[0], (maker, 0), name)
        yield from self._made(value, name)
        yield from self._used(value, target, user, name)

    def _out_of(self, value: Value, name: str, summed: bool = False) -> Iterator[Move]:
        yield from (replace(move, summed=summed) for move in self._made(value, name))
        for user, at in self.survey.users.get(value, ()):
            if at < 0:
                result = self.decided.results[-1 - at]
                assert result is not None
                yield from (replace(move, summed=summed) for move in self._used(value, result, (user, at), name))
                continue
            strategy = self.decided.strategies[user]
            moves = self._used(value, strategy.inputs[at], (user, at), name)
            yield from (replace(move, summed=summed) for move in moves)
            passes = any(isinstance(choice, Pass) for choice in strategy.chosen.values())
            if self._carries(user) or passes:
                yield from self._out_of((user, 0), name, summed or not self._carries(user))

    def _carries(self, node: fx.Node) -> bool:
        """Whether a node only passes its one tensor on in another form, so that the tensor may move before or after."""
        rule = self.survey.rules.get(node)
        is_form = rule is not None and (rule.is_view or node.target is torch.ops.aten._to_copy.default)
        return is_form and len(tensor_arguments(node)) == 1

    def _lies(self, value: Value) -> Placement:
        """Where a tensor lies for its users."""
        placed = self.decided.values.get(value) or self.decided.strategies[value[0]].outputs[value[1]]
        assert placed is not None
        return placed

    def _made(self, value: Value, name: str) -> Iterator[Move]:
        """From where a tensor is made to where its users share it."""
        if value[0].op == "call_function" and value in self.decided.values and ("made", value) not in self.seen:
            self.seen.add(("made", value))
            source = self.decided.strategies[value[0]].outputs[value[1]]
            assert source is not None
            users = len(self.survey.users[value])
            phases = _phases(value[0], value in self.again)
            yield from self._steps(value, source, self.decided.values[value], name, phases, users)

    def _used(self, value: Value, target: Placement, user: tuple[fx.Node, int], name: str) -> Iterator[Move]:
        """From where a tensor lies to where one user takes it."""
        if (value, user) not in self.seen:
            self.seen.add((value, user))
            by = user[0] if user[1] >= 0 else value[0]
            phases = _phases(by, user[0] in self.again_at)
            yield from self._steps(value, self._lies(value), target, name, phases, 1)

    def _steps(
        self, value: Value, source: Placement, target: Placement, name: str, phases: Sequence[Phase], users: int
    ) -> Iterator[Move]:
        """The steps of a reshard. A second phase repeats them, or the first one's result is held for it."""
        tensor = tensor_of(value)
        path = self.resharder.path(source, target, DTYPE_NAMES.get(tensor.dtype, "f32"), tensor.element_size())
        held_bytes = float(target.local_elements(self.resharder.grid) * tensor.element_size())
        for number, phase in enumerate(phases):
            if number and 0.0 < self.model.hold_s(held_bytes) < path.cost_s:
                cost_s = self.model.hold_s(held_bytes)
                yield Move(phase=phase, tensor=name, kind="held", axes=(), size_bytes=held_bytes, cost_s=cost_s)
                continue
            for step in path.steps or ():
                moved = step.collective
                yield Move(
                    phase=phase,
                    tensor=name,
                    kind=step.kind,
                    axes=step.axes,
                    size_bytes=moved.size_bytes if moved is not None else 0.0,
                    cost_s=step.cost_s,
                    users=users,
                )


def _phases(by: fx.Node, again: bool) -> tuple[Phase, ...]:
    """In which halves a tensor is moved for an operator: what follows from parameters alone may be in both."""
    return ("forward", "backward") if again else (facts(by).phase,)


def _backward_in_order(nodes: list[fx.Node], partners: dict[fx.Node, Partner], forward: fx.Node) -> list[fx.Node]:
    return [node for node in nodes if node in partners and partners[node].forward is forward]


def _names(partner: Partner) -> tuple[str, str, str]:
    """What the two inputs and the output of a backward product are."""
    forward = {own.factor: of.factor for of, own in partner.units.items()}
    for own in FACTORS:  # a factor of one position has no part; what is left is its name
        left = [name for name in FACTORS if name not in forward.values()]
        if own not in forward and left:
            forward[own] = left[0]
    tensors = [_TENSORS[frozenset((forward[a], forward[b]))] for a, b in ("mk", "kn", "mn")]
    first, second = ("dO" if name == "O" else name for name in tensors[:2])
    return first, second, f"d{tensors[2]}"


# -- what was ruled out -----------------------------------------------------------------------------------------------


def _ruled_out(search: Search, node: fx.Node) -> Iterator[RuledOut]:
    """The axes and factors that no state of the matmul combines."""
    survey, member = search.survey, search.members[search.member_of[node]]
    for axis in survey.grid.cut_axes:
        for factor in FACTORS:
            if not any(axis in strategy.axes(factor) for strategy in member.strategies):
                yield RuledOut(axis=axis, factor=factor, why=_why(search, node, axis, factor))


def _why(search: Search, node: fx.Node, axis: str, factor: str) -> str:
    survey = search.survey
    grid, options, roles = survey.grid, survey.options[node], survey.roles
    units = [unit for unit in options.units if unit.factor == factor]
    if all(options.strategy({axis: Cut(unit)}, grid) is None for unit in units):
        parts = f", divided into {' '.join(str(unit.size) for unit in units)}" if len(units) > 1 else ""
        return f"{grid[axis]} ranks do not divide {factor}={options.rule.sizes[factor]}{parts}"
    pin = survey.pins.get(node)
    if pin is not None and (factor in dict(pin.cuts) or any(axis in axes for _, axes in pin.cuts)):
        return str(pin)
    if axis in roles.batch_axes and not any(roles.is_batch(node, unit) for unit in units):
        return f"{axis} takes the batch"
    if axis in roles.row_axes and not any(roles.is_row(node, unit) for unit in units):
        return f"{axis} takes rows: the batch, or positions"
    if not any(roles.may_cut(node, unit) for unit in units):
        return "an operator with much work needs it whole"
    if survey.scheme.name:
        return f"the scheme {survey.scheme.name}"
    return "not beside the cuts of the other axes"
