"""The pass `localize`: from global shapes to those of one rank; where placements disagree, collectives."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from axograph.capture.program import DTYPE_NAMES, FACTS, Facts, Input, Output, Program, facts, note
from axograph.cost_model.protocol import CostModel
from axograph.grid import Grid
from axograph.passes.rewrite import finish
from axograph.passes.sharding.arguments import Value, is_pick, output_tensors, resolve, tensor_of
from axograph.passes.sharding.collectives import LocalEmitter
from axograph.passes.sharding.reshard import Resharder
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.rules import RuleBook
from axograph.placement import Placement
from axograph.torch_private import fake_tensor_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Localize:
    """Rewrite a sharded program as the program of every rank."""

    grid: Grid
    cost_model: CostModel
    name: str = "localize"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program on local tensors, with this rank's coordinates as inputs."""
        return _Localizer(program, self.grid, self.cost_model).run()


class _Localizer:
    def __init__(self, program: Program, grid: Grid, model: CostModel) -> None:
        self.program = program
        self.grid = grid
        self.resharder = Resharder(grid, model)
        self.emit = LocalEmitter(grid)
        self.rules = RuleBook()
        self.made: dict[fx.Node, Any] = {}
        """What stands for each node of the global graph: a node, or a tuple of them."""
        self.lies: dict[Value, Placement] = {}
        """Where each tensor lies when nothing else is asked."""
        self.at: dict[tuple[Value, Placement], fx.Node] = {}
        """Each tensor at each placement that it was brought to."""

    def run(self) -> Program:
        inputs = self._placeholders()
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.emit.origin = node
                if is_pick(node):
                    self.made[node] = None
                else:
                    self._operator(node)
        self.emit.origin = None
        results = tuple(
            None if result is None else self._result(result, declared)
            for result, declared in zip(self.program.results(), self.program.outputs, strict=True)
        )
        return finish(self.program, self.emit.graph, results, inputs, "Local")

    def _placeholders(self) -> tuple[Input, ...]:
        mode = fake_tensor_mode()
        device = torch.device("cpu")
        for node, declared in zip(self.program.placeholders(), self.program.inputs, strict=True):
            tensor = node.meta["val"]
            device = tensor.device
            assert declared.placement is not None
            with mode:
                local = torch.empty(declared.placement.local_shape(self.grid), dtype=tensor.dtype, device=device)
            placed = self.emit.placeholder(node.name, local, facts(node))
            self.made[node] = placed
            self._arrive((node, 0), placed, declared.placement)
        coordinates = []
        for axis in self.grid.cut_axes:
            with mode:
                scalar = torch.empty((), dtype=torch.int64, device=device)
            self.emit.coordinates[axis] = self.emit.placeholder(f"coordinate_{axis}", scalar, Facts())
            coordinates.append(Input(kind="coordinate", target=axis, placement=Placement(())))
        return (*self.program.inputs, *coordinates)

    def _arrive(self, value: Value, node: fx.Node, placement: Placement) -> None:
        self.lies[value] = placement
        self.at[value, placement] = node
        note(node, placements=(placement,))

    def _operator(self, node: fx.Node) -> None:
        strategy = facts(node).strategy
        assert isinstance(strategy, Strategy)
        rule = self.rules.rule_of(node)
        wanted = enumerate(strategy.inputs)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: self._argument(argument, wanted, rule))
        if not rule.known:  # nothing is known of it, so neither whether it reads the order of memory
            args, kwargs = fx.map_arg((args, kwargs), self._contiguous)
        lower = rule.lower
        if lower is not None:
            made = lower(self.emit, node, tuple(args), dict(kwargs), strategy)
        else:
            made = self.emit.call(node.target, *args, **kwargs)
        self.made[node] = made
        lies = facts(node).placements
        for i, (tensor, placement) in enumerate(zip(output_tensors(node), strategy.outputs, strict=False)):
            if tensor is None or placement is None:
                continue
            part = self._part(made, i, len(output_tensors(node)) > 1 or isinstance(node.meta["val"], tuple | list))
            if part is None:
                continue
            expected, found = placement.local_shape(self.grid), tuple(part.meta["val"].shape)
            assert expected == found, f"{node.format_node()} with {strategy}: local shape {found}, not {expected}"
            self._arrive((node, i), part, placement)
            home = lies[i]
            if home is not None and home != placement:
                moved = self.fetch((node, i), home)
                self._arrive((node, i), moved, home)

    def _part(self, made: Any, index: int, several: bool) -> fx.Node | None:
        """One output of an operator that was emitted as one node or, taken apart, as several."""
        if isinstance(made, tuple):
            part: fx.Node | None = made[index]
            return part
        if not several:
            whole: fx.Node = made
            return whole
        picked = self.emit.graph.call_function(operator.getitem, (made, index))
        picked.meta = {"val": made.meta["val"][index], FACTS: replace(facts(made), placements=())}
        return picked

    def _contiguous(self, argument: fx.Node) -> fx.Node:
        tensor = argument.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or tensor.is_contiguous():
            return argument
        return self.emit.call(torch.ops.aten.contiguous.default, argument)

    def _argument(self, argument: fx.Node, wanted: Iterator[tuple[int, Placement]], rule: Rule) -> fx.Node:
        if not isinstance(argument.meta.get("val"), torch.Tensor):
            maker, index = resolve(argument)
            made: fx.Node = self.made[maker]
            if maker is argument:
                return made
            picked = self.emit.graph.call_function(operator.getitem, (made, index))
            picked.meta = {"val": made.meta["val"][index]}
            return picked
        at, placement = next(wanted)
        fetched = self.fetch(resolve(argument), placement)
        return fetched if placement.is_even(self.grid) else self._filled(fetched, placement, rule, at)

    def _filled(self, x: fx.Node, placement: Placement, rule: Rule, at: int) -> fx.Node:
        """An input of an operator, with its padding set to what the operator can take there."""
        for dim, factors in enumerate(rule.inputs[at]):
            inside = rule.sizes_of(factors)
            for atom, sub in enumerate(placement.dims[dim]):
                if not sub.is_even(self.grid):
                    within = math.prod(s.size for s in placement.dims[dim][atom + 1 :])
                    factor = next(name for name, low, high in inside if low <= within < high)
                    fill = rule.fill_of(factor, at)
                    if fill is not None:
                        x = self.emit.filled(x, placement, (dim, atom), fill)
        return x

    def fetch(self, value: Value, target: Placement) -> fx.Node:
        """A tensor at a placement, by the cheapest reshard, once."""
        known = self.at.get((value, target))
        if known is not None:
            return known
        source = self.lies[value]
        tensor = tensor_of(value)
        dtype = DTYPE_NAMES.get(tensor.dtype, "f32")
        path = self.resharder.path(source, target, dtype, tensor.element_size())
        reason = f"{source.simplified()} -> {target.simplified()}"
        made = self.emit.reshard(self.at[value, source], source, path, reason)
        note(made, placements=(target,))
        self.at[value, target] = made
        return made

    def _result(self, result: fx.Node, declared: Output) -> fx.Node:
        assert declared.placement is not None
        self.emit.origin = result
        return self.fetch(resolve(result), declared.placement)
