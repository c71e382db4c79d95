"""The pass `shard`: a placement on every node, a matmul placement on every matmul."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import fx

from axograph.capture.program import Input, Program, note
from axograph.cost_model.protocol import CostModel
from axograph.grid import Grid
from axograph.passes.remat import Remat
from axograph.passes.rewrite import copied
from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.constraints import Entry
from axograph.passes.sharding.decision import Once, decided_once
from axograph.passes.sharding.explaining import Explainer
from axograph.passes.sharding.freeing import freed
from axograph.passes.sharding.idle_axes import refuse_idle_axes
from axograph.passes.sharding.rule import Strategy
from axograph.passes.sharding.schemes import USUAL_BATCH_AXES, Scheme
from axograph.passes.sharding.search import Assignment, Search
from axograph.passes.sharding.survey import Survey
from axograph.placement import Placement
from axograph.plan import MatmulPlacement, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Decide where everything lies, at the least cost under the cost model."""

    grid: Grid
    cost_model: CostModel
    scheme: str | None = None
    batch_dims: Mapping[int, int | None] = field(default_factory=dict)
    """The dim of each user input that carries the batch, None for an input without one."""
    full_outputs: bool = False
    """Whether every rank gets the outputs of the model in full."""
    stored: Mapping[str, Placement] = field(default_factory=dict)
    """Where parameters already lie, from an earlier program of the same model."""
    batch_axes: tuple[str, ...] = USUAL_BATCH_AXES
    """The axes that take the batch where they divide it. Of fewer than usual, others cut whatever is cheapest."""
    entries: tuple[Entry, ...] = ()
    """What the user's plan asks of matmuls."""
    once: Once | None = None
    """Searches on one rank, for all; None: this rank searches."""
    memory_bytes: float = math.inf
    """The most that a rank may hold during a step."""
    remat: Remat = "none"
    """What backward recomputes, beside the checkpointed calls of the model: less is held then."""
    name: str = "shard"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """Raises `GridError` where an axis cuts no matmul.

        Raises `PlanError` where the user's plan cannot be met, and where no plan fits into memory.
        """
        program = copied(program, "Sharded")
        search = self.search(program)
        search.states.check_pins()
        survey = search.survey
        run = search.run if self.batch_axes == USUAL_BATCH_AXES else partial(freed, search)
        decided = run() if self.once is None else decided_once(survey, run, self.once)
        inputs = []
        for node, declared in zip(program.placeholders(), program.inputs, strict=True):
            placed = decided.values[node, 0]
            note(node, placements=(placed,))
            inputs.append(replace(declared, placement=placed))
        for node, strategy in decided.strategies.items():
            lies = tuple(decided.values.get((node, i), made) for i, made in enumerate(strategy.outputs))
            note(node, placements=lies, strategy=strategy)
        outputs = tuple(
            replace(declared, placement=placed)
            for declared, placed in zip(program.outputs, decided.results, strict=True)
        )
        plan = _plan(survey, decided, tuple(inputs))
        plan = replace(plan, explainer=Explainer(partial(self.search, program), decided, plan.matmuls))
        refuse_idle_axes(survey, decided)
        return replace(program, inputs=tuple(inputs), outputs=outputs, plan=plan)

    def search(self, program: Program) -> Search:
        """The search that this pass makes for a program."""
        scheme = Scheme.named(self.scheme, self.batch_axes)
        survey = Survey(program, self.grid, scheme, self.batch_dims, self.stored, self.entries)
        return Search(
            survey,
            self.cost_model,
            full_outputs=self.full_outputs,
            memory_bytes=self.memory_bytes,
            remat=self.remat,
        )


def _plan(survey: Survey, decided: Assignment, inputs: tuple[Input, ...]) -> Plan:
    parameters = {str(i.target): i.placement for i in inputs if i.kind == "parameter" and i.placement is not None}
    by_node = {node: i for node, i in zip(survey.placeholders, inputs, strict=True)}
    matmuls = {}
    for path, node in survey.matmuls.items():
        strategy = decided.strategies[node]
        weight = _parameter_behind(tensor_arguments(node)[1], by_node)
        sizes = decided.rules[node].sizes
        matmuls[path] = MatmulPlacement(
            path=path,
            weight=str(weight.target) if weight else "",
            m=strategy.axes("m"),
            k=strategy.axes("k"),
            n=strategy.axes("n"),
            shape=(sizes["m"], sizes["k"], sizes["n"]),
            stored=weight.placement if weight else None,
            reason=_reason(survey, node, strategy),
        )
    unknown = sorted({str(node.target) for node, rule in decided.rules.items() if not rule.known})
    notes = (
        *decided.roles.notes,
        *survey.pin_notes,
        *(f"{op} has no rule: it runs on gathered inputs" for op in unknown),
    )
    return Plan(
        grid=survey.grid,
        scheme=survey.scheme.name,
        matmuls=matmuls,
        parameters=parameters,
        cost_s=decided.cost_s,
        certificate=decided.certificate,
        memory=decided.memory,
        remat="block" if decided.blocks else "none",
        notes=notes,
    )


def _parameter_behind(node: fx.Node, inputs: Mapping[fx.Node, Input]) -> Input | None:
    """The parameter that a tensor is, seen through views."""
    while node.op == "call_function" and len(tensor_arguments(node)) == 1:
        node = tensor_arguments(node)[0]
    declared = inputs.get(node)
    return declared if declared is not None and declared.kind == "parameter" else None


def _reason(survey: Survey, node: fx.Node, strategy: Strategy) -> str:
    """Why a matmul is not laid out as the scheme has it, and why axes cut nothing of it."""
    grid, sizes = survey.grid, survey.rules[node].sizes
    dims = ", ".join(f"{name}={sizes[name]}" for name in "mkn" if name in sizes)
    reasons = list(survey.pins[node].asked) if node in survey.pins else []
    scheme = survey.scheme
    if scheme.name and not scheme.allows(strategy, survey.roles.feature_factors(node, survey.options[node]), grid):
        reasons.append(f"no {scheme.name} layout divides {dims}")
    busy = {axis for axes in strategy.cuts.values() for axis in axes}
    for axis in grid.cut_axes:
        if axis in busy:
            continue
        free = [name for name in sizes if sizes[name] % (grid.extent(strategy.axes(name)) * grid[axis]) == 0]
        why = "all its ranks do the same, which costs less than to cut" if free else "it divides nothing evenly of"
        reasons.append(f"{axis}={grid[axis]} is idle: {why} {dims}")
    return "; ".join(reasons)
