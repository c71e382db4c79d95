"""Which operators of a local program work on chunks of the batch, and how.

The chunks are an axis more of a pretended grid, whose "ranks" one rank plays in turn. So the rules say what may be
cut; what a chunk cannot do alone (statistics of the batch, sorting, what has no rule) is done on the whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from axograph.capture.program import Program, facts
from axograph.cost_model.protocol import Collective, Compute, CostModel
from axograph.cost_model.simulator import STREAM
from axograph.grid import Grid
from axograph.passes.chunking.rules import local_rule_of
from axograph.passes.dataflow import from_parameters, only_gradients
from axograph.passes.sharding.arguments import (
    Value,
    is_pick,
    output_tensors,
    resolve,
    tensor_arguments,
    tensor_of,
)
from axograph.passes.sharding.atoms import Atoms, Unit, find_atoms
from axograph.passes.sharding.roles import Links, Spot, spots
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.rules import RuleBook
from axograph.passes.sharding.strategies import Cut, Options, find_options, place
from axograph.passes.sharding.work import local_work
from axograph.passes.simplify import value_type
from axograph.placement import Placement
from axograph.torch_private import collective_op

aten = torch.ops.aten

CHUNKS = "data"
"""The axis of the pretended grid along which the chunks lie."""


class Survey:
    """A local program, and where the batch is in it."""

    def __init__(self, program: Program, batch_dims: Mapping[int, int | None]) -> None:
        """`batch_dims` gives the dim of each user input that carries the batch, None for an input without one."""
        nodes = [node for node in program.graph.nodes if node.op == "call_function" and not is_pick(node)]
        book = RuleBook(local_rule_of)
        self.rules: dict[fx.Node, Rule] = {node: book.rule_of(node) for node in nodes}
        self.atoms = find_atoms(program.graph, self.rules)
        self._options = find_options(self.rules, self.atoms)
        self._links = Links(self._options)
        self.apart = from_parameters(program) | only_gradients(program)
        """What follows from weights alone, and what only brings gradients to where they are stored."""
        self.parts = self._find_parts(program, batch_dims)

    def _find_parts(self, program: Program, batch_dims: Mapping[int, int | None]) -> list[Part]:
        """The parts of the batch, the outermost first, then those of the other dims of inputs with a batch.

        Views and collectives divide dims into parts; chunks may cut any of them.
        """
        starts: dict[tuple[int, int], list[Spot]] = defaultdict(list)
        for node, declared in zip(program.placeholders(), program.inputs, strict=True):
            batch = batch_dims.get(int(declared.target)) if declared.kind == "user" else None
            if batch is None:
                continue
            for dim, sizes in enumerate(self.atoms[node, 0]):
                inside = 1
                for atom, size in reversed(list(enumerate(sizes))):
                    if size > 1:
                        starts[dim - batch, -inside].append(((node, 0), dim, atom))
                    inside *= size
        return [self._part(starts[key]) for key in sorted(starts, key=lambda key: (abs(key[0]), key))]

    def _part(self, starts: list[Spot]) -> Part:
        batch = self._links.spread(starts)
        units: dict[fx.Node, tuple[Options, Unit]] = {}
        for node, own in self._options.items():
            unit = next((unit for unit in own.units if _may_cut(own.rule, unit) and _is_in(node, unit, batch)), None)
            if unit is not None and _goes_on(node, unit, units):
                units[node] = (own, unit)
        return Part(size=math.gcd(*(self.atoms[value][dim][atom] for value, dim, atom in starts)), units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the batch, or of another dim that chunks may cut."""

    size: int
    units: Mapping[fx.Node, tuple[Options, Unit]]
    """The operators that may be cut along it: what they allow, and the part of a factor that it is to them."""


def _goes_on(node: fx.Node, unit: Unit, units: Mapping[fx.Node, tuple[Options, Unit]]) -> bool:
    """Whether a cut fits the node's start, if it waits for one: there is one wait for each."""
    start = node.args[0] if node.args else None
    if not isinstance(start, fx.Node) or facts(start).collective is None:
        return True
    return start in units and units[start][1].outputs == unit.inputs


def _may_cut(rule: Rule, unit: Unit) -> bool:
    """Whether a chunk can do its part of a factor without the others."""
    return unit.factor not in rule.statistics and unit.factor not in rule.leading


def _is_in(node: fx.Node, unit: Unit, batch: frozenset[Spot]) -> bool:
    return any(spot in batch for spot in spots(node, unit))


class Cuts:
    """How each operator works on so many chunks."""

    def __init__(self, survey: Survey, part: Part, chunks: int, model: CostModel, machine: Grid) -> None:
        """`machine` is the grid of ranks that the collectives of the program span."""
        self.survey = survey
        self.chunks = chunks
        self.grid = Grid(1, 1, 1, chunks)
        """The pretended one, of chunks."""
        self.model = model
        self.machine = machine
        self.strategies: dict[fx.Node, Strategy] = {}
        """Of the operators that work on chunks."""
        self.more_s = defaultdict[str, float](float)
        """How much longer all chunks compute than the whole, and how much longer each channel is busy."""
        self.communicated_s = 0.0
        """The seconds of the collectives that are cut, while they are whole."""
        self._wholes: dict[Atoms, Placement] = {}
        known: dict[Hashable, Strategy | None] = {}
        priced: dict[Hashable, float] = {}
        for node, (options, unit) in part.units.items():
            key = (id(options), unit)
            if key not in known:
                known[key] = _even(options.strategy({CHUNKS: Cut(unit)}, self.grid), self.grid)
            strategy = known[key]
            if strategy is not None:
                sizes = tuple(argument.meta["val"].element_size() for argument in tensor_arguments(node))
                self._add(node, strategy, (key, node.target, sizes, str(value_type(node))), priced)

    @property
    def most_gain_s(self) -> float:
        """What chunks save if they hide all that is cut and communicated."""
        return self.communicated_s - sum(self.more_s.values())

    def _add(self, node: fx.Node, strategy: Strategy, kind: Hashable, priced: dict[Hashable, float]) -> None:
        """Let an operator work on chunks; a sum only if that costs no more than to join the chunks and sum all.

        Products always: they can hide what the other chunks communicate. Operators of one kind are `priced` once.
        """
        made = [p for p in strategy.outputs if p is not None]
        moved, more_s, track = facts(node).collective, 0.0, STREAM
        if moved is not None:
            channel = getattr(self.model, "channel", None)
            track = channel(moved, self.machine) if channel else "network"
            more_s = self.chunks * self.model.collective_s(share(moved, self.chunks), self.machine)
            whole_s = self.model.collective_s(moved, self.machine)
            more_s -= whole_s
            self.communicated_s += whole_s
        elif not self.survey.rules[node].is_view and node.target is not collective_op("wait_tensor"):
            if kind not in priced:
                priced[kind] = self._more_s(node, strategy)
            more_s = priced[kind]
        sums = all(p.partial for p in made) and node.target is not aten.mm.default
        if not sums or more_s <= self._joined_s(node, strategy):
            self.strategies[node] = strategy
            self.more_s[track] += more_s

    def _more_s(self, node: fx.Node, strategy: Strategy) -> float:
        """How much longer an operator takes on all chunks than on the whole."""
        rule = self.survey.rules[node]
        whole = Strategy(
            inputs=tuple(self.whole(resolve(argument)) for argument in tensor_arguments(node)),
            outputs=tuple(None if p is None else self.whole((node, i)) for i, p in enumerate(strategy.outputs)),
            cuts={},
        )
        one_s, all_s = (self.model.compute_s(local_work(node, rule, s, self.grid)) for s in (strategy, whole))
        summed = node.target is not aten.mm.default
        sums = (t for t, p in zip(output_tensors(node), strategy.outputs, strict=True) if p is not None and p.partial)
        added_s = sum(self._copy_s(1.5 * t.numel() * t.element_size()) for t in sums if t is not None and summed)
        return self.chunks * one_s + (self.chunks - 1) * added_s - all_s

    def _joined_s(self, node: fx.Node, strategy: Strategy) -> float:
        """The seconds of joining the chunks of all inputs."""
        given = zip(tensor_arguments(node), strategy.inputs, strict=True)
        tensors = [tensor_of(value) for value in {resolve(argument) for argument, placed in given if placed.axes}]
        return sum(self._copy_s(tensor.numel() * tensor.element_size()) for tensor in tensors)

    def whole(self, value: Value) -> Placement:
        """The placement of a tensor that is not cut."""
        atoms = self.survey.atoms[value]
        if atoms not in self._wholes:
            self._wholes[atoms] = place(atoms)
        return self._wholes[atoms]

    def _copy_s(self, size_bytes: float) -> float:
        """The seconds of reading and writing so many bytes."""
        return self.model.compute_s(Compute(op="copy", flops=0.0, size_bytes=2 * size_bytes, dtype="f32"))


def _even(strategy: Strategy | None, grid: Grid) -> Strategy | None:
    """A strategy that makes equal chunks, without padding; None for others."""
    if strategy is None:
        return None
    placed = (*strategy.inputs, *strategy.outputs)
    return strategy if all(p is None or p.is_even(grid) for p in placed) else None


def share(collective: Collective, chunks: int) -> Collective:
    """One chunk's share of a collective."""
    return Collective(kind=collective.kind, axes=collective.axes, size_bytes=collective.size_bytes / chunks)
