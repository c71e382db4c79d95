"""The search: a strategy for every operator and a placement for every tensor that several use, at least cost.

Variables are the operators, the parameters, the outputs, and each tensor with several users (so that a reshard which
they share is paid once). Operators that stand at the same place in identical layers share one variable. The sum of
compute and of reshards is minimised exactly, by variable elimination.

`survey` has what there is to decide, `states` the states of each decision, `elimination` the minimisation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import fx

from axograph.capture.program import DTYPE_NAMES
from axograph.cost_model.memory import MemoryEstimate
from axograph.cost_model.protocol import CostModel
from axograph.passes.remat import Remat
from axograph.passes.sharding.arguments import Value, resolve, tensor_of
from axograph.passes.sharding.elimination import Problem, Solution, minimize
from axograph.passes.sharding.fitting import again_s, does_not_fit, estimate, within_memory
from axograph.passes.sharding.memory import Held
from axograph.passes.sharding.repeats import unnumbered
from axograph.passes.sharding.reshard import Codes, Resharder
from axograph.passes.sharding.roles import Roles
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.states import Kept, Member, States
from axograph.passes.sharding.strategies import place
from axograph.passes.sharding.survey import Survey
from axograph.placement import Placement


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
    memory: MemoryEstimate | None = None
    """What a rank holds."""
    blocks: bool = False
    """Whether that is so because backward recomputes the insides of blocks."""


_BLOCKS: dict[Remat, tuple[bool, ...]] = {"none": (False,), "block": (True,), "auto": (False, True)}
"""Whether backward recomputes the insides of blocks: what is tried in turn."""


class Search:
    """The cheapest assignment for one program on one grid."""

    def __init__(
        self,
        survey: Survey,
        model: CostModel,
        *,
        full_outputs: bool = False,
        memory_bytes: float = math.inf,
        remat: Remat = "none",
        kept: Kept | None = None,
        resharder: Resharder | None = None,
    ) -> None:
        self.survey = survey
        self.model = model
        self.full_outputs = full_outputs
        self.memory_bytes = memory_bytes
        """The most that a rank may hold."""
        self.remat = remat
        self.states = States(survey, model, full_outputs=full_outputs, kept=kept)
        self.resharder = resharder if resharder is not None else Resharder(survey.grid, model)
        self.members: dict[Hashable, Member] = {}
        self.member_of: dict[fx.Node, Hashable] = {}
        self.counts: Counter[Hashable] = Counter()
        """How many nodes or tensors each member stands for."""
        self.shared: dict[Value, Hashable] = {}
        self.results: list[Hashable] = []
        """The member that each output of the graph must agree with."""
        self._codes: dict[tuple[int, int], Codes] = {}

    def run(self) -> Assignment:
        """Build the problem, solve it, and read the answer; `PlanError` where no answer fits into memory."""
        problem = self.problem()
        solution = minimize(problem)
        assert np.isfinite(solution.cost), "every operator can run on whole tensors"
        found: list[Assignment] = []
        for blocks in _BLOCKS[self.remat]:
            held = self.held(blocks=blocks)
            decided = self.read(solution, held)
            if self._fits(decided):
                found.append(decided)
                break
            found.append(within_memory(self, problem, held, decided))
        fitting = [decided for decided in found if self._fits(decided)]
        if not fitting:
            raise does_not_fit(self, problem, held, found[-1])
        if len(fitting) == 1:
            return fitting[0]
        return min(fitting, key=lambda decided: decided.cost_s + again_s(self, solution, decided))

    def _fits(self, decided: Assignment) -> bool:
        assert decided.memory is not None
        return decided.memory.total <= self.memory_bytes

    def held(self, *, blocks: bool) -> Held:
        """What each state holds, once the problem is built, with or without the insides of blocks."""
        return Held(self.survey, self.members, self.member_of, self.shared, self.results, self.resharder, blocks=blocks)

    def problem(self) -> Problem:
        """All that is to be decided, with the seconds of each state and of each pair of states."""
        self._operators()
        self._ends()
        self._share()
        problem = Problem()
        for key, member in self.members.items():
            problem.add_variable(member.variable, member.cost_s * max(self.counts[key], 1))
        self._connect(problem)
        return problem

    def _operators(self) -> None:
        keys = self.survey.keys()
        for node in self.survey.nodes:
            key = ("op", keys[node])
            self.member_of[node] = key
            self.counts[key] += 1
            if key in self.members:
                continue
            partner = self.survey.partners.get(node)
            if partner is None:
                self.members[key] = self.states.operator(node, key)
            else:
                variable = ("op", keys[partner.forward])
                self.members[key] = self.states.follower(node, variable, self.members[variable], partner)

    def _ends(self) -> None:
        """Members for what goes in and out. A gradient lies as its parameter does, a tangent as its output."""
        parameters = self._parameter_keys()
        for node, declared in self.survey.placeholders.items():
            key: Hashable = ("user output" if declared.kind == "tangent" else declared.kind, declared.target)
            if declared.kind == "parameter":
                key = parameters[declared.target]
            self.member_of[node] = key
            self.counts[key] += 1
            if key not in self.members:
                self.members[key] = self.states.placeholder(node, key)
        for index, (result, output) in enumerate(zip(self.survey.results, self.survey.program.outputs, strict=True)):
            key = ("user output", output.target) if output.kind == "user" else ("result", index)
            if output.kind == "gradient" and isinstance(output.target, str):
                key = parameters[output.target]
            self.results.append(key)
            if key not in self.members and result is not None:
                value = resolve(result)
                whole = output.kind != "user" or tensor_of(value).dim() == 0
                states = [place(self.survey.atoms[value])] if whole else self.states.output(value)
                self.members[key] = Member.tensor(key, states)

    def _parameter_keys(self) -> dict[str | int, Hashable]:
        """A key for each parameter, equal for the same one of identical layers: its users and gradient are the same."""
        keys: dict[str | int, Hashable] = {}
        gradients = self.survey.gradients()
        for node, declared in self.survey.placeholders.items():
            if declared.kind != "parameter":
                continue
            name = str(declared.target)
            users = tuple((self.member_of.get(user), at) for user, at in self.survey.users.get((node, 0), ()))
            maker, output = gradients.get(name, (None, 0))
            made = (self.member_of.get(maker) if maker is not None else None, output)
            said = (self.survey.stored.get(name), self.survey.stored_pins.get(name))
            what = (self.survey.atoms[node, 0], node.meta["val"].dtype, said)
            keys[name] = ("parameter", unnumbered(name), what, users, made)
        return keys

    def _share(self) -> None:
        """Add a variable for each tensor with several users: where it lies for all of them."""
        domains: dict[Hashable, dict[Placement, None]] = defaultdict(dict)
        seen: set[tuple[Hashable, Hashable, int]] = set()
        for value, users in self.survey.users.items():
            if len(users) < 2 or value[0].op == "placeholder":
                continue
            maker = self.member_of[value[0]]
            key: Hashable = ("tensor", maker, value[1])
            self.shared[value] = key
            self.counts[key] += 1
            states = domains[key]
            if (key, maker, -1) not in seen:
                seen.add((key, maker, -1))
                made = [outputs[value[1]] for outputs in self.members[maker].outputs]
                states.update((p.reduced(), None) for p in made if p is not None)
            for node, at in users:
                if at >= 0 and (key, self.member_of[node], at) not in seen:
                    seen.add((key, self.member_of[node], at))
                    states.update((inputs[at], None) for inputs in self.members[self.member_of[node]].inputs)
        for key, states in domains.items():
            self.members[key] = Member.tensor(key, states)

    def _connect(self, problem: Problem) -> None:
        """Add the costs of the reshards between what makes a tensor and what uses it."""
        counts: Counter[tuple[Hashable, int, Hashable, int]] = Counter()
        example: dict[tuple[Hashable, int, Hashable, int], Value] = {}

        operators, tensors = self.survey.remade()
        twice: set[tuple[Hashable, int, Hashable, int]] = set()
        """Reshards of what follows from parameters alone that backward needs, too."""

        def edge(producer: Hashable, output: int, consumer: Hashable, at: int, value: Value, again: bool) -> None:
            key = (producer, output, consumer, at)
            example[key] = value
            counts[key] += 1
            if again:
                twice.add(key)

        for value, users in self.survey.users.items():
            source, output = self.member_of[value[0]], value[1]
            if value in self.shared:
                edge(source, output, self.shared[value], 0, value, value in tensors)
                source, output = self.shared[value], 0
            for node, at in users:
                if at >= 0:
                    edge(source, output, self.member_of[node], at, value, node in operators)
                else:
                    edge(source, output, self.results[-1 - at], 0, value, False)
        for key, count in counts.items():
            producer, output, consumer, at = key
            if producer != consumer or self.members[producer].strategies:
                first, second = self.members[producer], self.members[consumer]
                table = self._table(first, output, second, at, example[key])
                if key in twice:
                    table = table + np.minimum(table, self._held_s(second, at, example[key]))
                table = count * table
                problem.add_pair(first.variable, second.variable, table)

    def _table(self, producer: Member, output: int, consumer: Member, at: int, value: Value) -> npt.NDArray[np.float64]:
        """Seconds of the reshard for each pair of states."""
        tensor = tensor_of(value)
        sources, targets = self._coded(producer.outputs, output), self._coded(consumer.inputs, at)
        size_bytes = tensor.numel() * tensor.element_size()
        return self.resharder.table(sources, targets, size_bytes, DTYPE_NAMES.get(tensor.dtype, "f32"))

    def _held_s(self, consumer: Member, at: int, value: Value) -> npt.NDArray[np.float64]:
        """Seconds for holding a tensor from forward to backward as each state of a consumer takes it."""
        size = tensor_of(value).element_size()
        taken = [state[at] for state in consumer.inputs]
        held = [self.states.model.hold_s(placed.local_elements(self.survey.grid) * size) for placed in taken]
        return np.array(held)[None, :]

    def _coded(self, states: Sequence[tuple[Placement | None, ...]], at: int) -> Codes:
        """The number of the placement in each state, worked out once for each list of states."""
        key = (id(states), at)
        known = self._codes.get(key)
        if known is None:
            placements = [state[at] for state in states]
            known = self._codes[key] = self.resharder.number(p for p in placements if p is not None)
            assert len(known) == len(states)
        return known

    def read(self, solution: Solution, held: Held | None = None) -> Assignment:
        """What a solution decides, and what it holds."""

        def placed(key: Hashable) -> Placement:
            member = self.members[key]
            found = member.outputs[solution.states[member.variable]][0]
            assert found is not None
            return found

        values = {(node, 0): placed(self.member_of[node]) for node in self.survey.placeholders}
        values |= {value: placed(key) for value, key in self.shared.items()}
        strategies = {}
        for node in self.survey.nodes:
            member = self.members[self.member_of[node]]
            strategies[node] = member.strategies[solution.states[member.variable]]
        ends = (
            placed(key) if result is not None else None
            for key, result in zip(self.results, self.survey.results, strict=True)
        )
        decided = Assignment(
            strategies=strategies,
            values=values,
            results=tuple(ends),
            cost_s=solution.cost,
            certificate=certificate(solution),
            roles=self.survey.roles,
            rules=self.survey.rules,
        )
        if held is None:
            return decided
        return replace(decided, memory=estimate(self, held, solution.states, decided), blocks=held.blocks)


def certificate(solution: Solution) -> str:
    """What is known of the distance to the least cost."""
    if solution.is_optimal:
        return "optimal"
    over = solution.cost / solution.bound - 1 if solution.bound > 0 else np.inf
    return f"within {over:.1%} of the lower bound" if np.isfinite(over) else "no lower bound known"
