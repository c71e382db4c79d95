"""What a program asks of the search: its operators with their rules and choices, and who uses which tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from axograph.capture.program import Input, Program, facts
from axograph.grid import Grid
from axograph.passes.sharding.arguments import Value, is_pick, resolve, tensor_arguments
from axograph.passes.sharding.atoms import Atoms, find_atoms
from axograph.passes.sharding.constraints import Entry, Pin, find_pins, find_stored, matmul_names
from axograph.passes.sharding.partners import Partner, find_partners
from axograph.passes.sharding.repeats import operator_keys
from axograph.passes.sharding.roles import Roles, find_roles
from axograph.passes.sharding.rule import Rule
from axograph.passes.sharding.rules import RuleBook
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.strategies import Options, find_options
from axograph.placement import Placement


@dataclass(slots=True)
class Survey:
    """A program as the search sees it."""

    program: Program
    grid: Grid
    scheme: Scheme
    batch_dims: Mapping[int, int | None]
    """The dim of each user input that carries the batch, None for an input without one."""
    stored: Mapping[str, Placement] = field(default_factory=dict)
    """Where parameters already lie, from an earlier program of the same model."""
    entries: Sequence[Entry] = ()
    """What the user's plan asks of matmuls."""
    nodes: list[fx.Node] = field(init=False)
    """The operators, in order."""
    rules: dict[fx.Node, Rule] = field(init=False)
    placeholders: dict[fx.Node, Input] = field(init=False)
    results: list[fx.Node | None] = field(init=False)
    atoms: dict[Value, Atoms] = field(init=False)
    options: dict[fx.Node, Options] = field(init=False)
    roles: Roles = field(init=False)
    partners: dict[fx.Node, Partner] = field(init=False)
    matmuls: dict[str, fx.Node] = field(init=False)
    """The forward products, by the names under which they are planned."""
    pins: dict[fx.Node, Pin] = field(init=False)
    """What the user's plan says of each matmul that it names."""
    pin_notes: tuple[str, ...] = field(init=False)
    stored_pins: dict[str, Entry] = field(init=False)
    """What the user's plan says of how parameters are stored."""
    users: dict[Value, list[tuple[fx.Node, int]]] = field(init=False)
    """For each value, the operators that take it and at which place; a place of -1 - i is output i of the graph."""

    def __post_init__(self) -> None:
        self.nodes = [n for n in self.program.graph.nodes if n.op == "call_function" and not is_pick(n)]
        book = RuleBook()
        self.rules = {node: book.rule_of(node) for node in self.nodes}
        self.placeholders = dict(zip(self.program.placeholders(), self.program.inputs, strict=True))
        self.results = self.program.results()
        self.atoms = find_atoms(self.program.graph, self.rules, self._tied(), self._already_stored())
        self.options = find_options(self.rules, self.atoms)
        self.roles = find_roles(self.program, self.options, self.atoms, self.grid, self.scheme, self.batch_dims)
        self.partners = find_partners(self.options, self._gradients_and_parameters())
        self.matmuls = matmul_names(self.nodes)
        self.pins, self.pin_notes = find_pins(self.entries, self.matmuls, self.options)
        parameters = [str(declared.target) for declared in self.program.inputs if declared.kind == "parameter"]
        self.stored_pins = find_stored(self.entries, parameters, self.grid)
        self.users = self._users()

    def _tied(self) -> list[tuple[Value, Value]]:
        """A gradient lies as its parameter does, and a tangent as its output."""
        tied = []
        inputs = {(declared.kind, declared.target): node for node, declared in self.placeholders.items()}
        for result, declared in zip(self.results, self.program.outputs, strict=True):
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

    def _users(self) -> dict[Value, list[tuple[fx.Node, int]]]:
        users: dict[Value, list[tuple[fx.Node, int]]] = defaultdict(list)
        for node in self.nodes:
            for place_, argument in enumerate(tensor_arguments(node)):
                users[resolve(argument)].append((node, place_))
        output = self.program.graph.output_node()
        for i, result in enumerate(self.results):
            if result is not None:
                users[resolve(result)].append((output, -1 - i))
        return users

    def remade(self) -> tuple[set[fx.Node], set[Value]]:
        """The operators, and the tensors, that follow from parameters alone and are used forward and backward.

        What is gathered for them is gathered again for backward, or held until then (see the pass `split`).
        """
        declared = self.placeholders.items()
        alone = {node for node, about in declared if about.kind == "parameter"}
        for node in self.nodes:
            makers = [resolve(argument)[0] for argument in tensor_arguments(node)]
            if makers and alone.issuperset(makers):
                alone.add(node)
        phases: dict[Value, set[str]] = defaultdict(set)
        """In which halves a tensor is used, by operators that take more than parameters."""
        for node in reversed(self.nodes):
            own: set[str] = {facts(node).phase}
            if node in alone:
                own = {phase for i in range(len(self.rules[node].outputs)) for phase in phases[node, i]}
            for argument in tensor_arguments(node):
                phases[resolve(argument)] |= own
        both = {value for value, used in phases.items() if value[0] in alone and len(used) == 2}
        return {node for node, _ in both}, both

    def gradients(self) -> dict[str | int, Value]:
        """What makes the gradient of each parameter, by name."""
        return {
            declared.target: resolve(result)
            for result, declared in zip(self.results, self.program.outputs, strict=True)
            if declared.kind == "gradient" and isinstance(declared.target, str) and result is not None
        }

    def _gradients_and_parameters(self) -> list[tuple[Value, Value, Atoms]]:
        gradients = self.gradients()
        pairs = []
        for node, declared in self.placeholders.items():
            if declared.kind == "parameter" and declared.target in gradients:
                gradient = gradients[declared.target]
                if self.atoms[gradient] == self.atoms[node, 0]:
                    pairs.append((gradient, (node, 0), self.atoms[node, 0]))
        return pairs

    def keys(self) -> dict[fx.Node, Hashable]:
        """A key for each operator, equal for operators at the same place of identical layers."""
        forward = {node: partner.forward for node, partner in self.partners.items()}
        return operator_keys(self.rules, self.atoms, forward, self.pins)
