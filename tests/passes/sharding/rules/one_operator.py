"""A bench for one operator: a graph of that operator alone, run in every way that its rule allows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, product
from typing import Any

import torch
from torch import fx

from axograph.capture.program import Input, Output, Program, note
from axograph.capture.structure import Structure
from axograph.cost_model import RingModel
from axograph.grid import CUT_ORDER, Grid
from axograph.passes.localize import Localize
from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.atoms import find_atoms
from axograph.passes.sharding.rule import Rule, Strategy
from axograph.passes.sharding.rules import rule_of
from axograph.passes.sharding.strategies import Choice, Options
from axograph.placement import Placement
from axograph.runtime.virtual_grid import VirtualGrid
from axograph.torch_private import fake_tensor_mode, tree_flatten, tree_unflatten

aten = torch.ops.aten
_MODEL = RingModel()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument to be drawn: floats from a normal distribution, integers from 0 (or 1) up to `below`."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    below: int = 0
    positive: bool = False

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        if self.dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.5
        if self.below:
            return torch.randint(int(self.positive), self.below, self.shape, dtype=self.dtype, generator=generator)
        drawn = torch.randn(self.shape, dtype=torch.float64, generator=generator)
        return (drawn.abs() + 0.1 if self.positive else drawn).to(self.dtype)


def floats(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return Tensor(shape, dtype)


def positive(*shape: int) -> Tensor:
    return Tensor(shape, positive=True)


def integers(below: int, *shape: int) -> Tensor:
    return Tensor(shape, torch.int64, below)


def booleans(*shape: int) -> Tensor:
    return Tensor(shape, torch.bool)


@dataclass(frozen=True, slots=True)
class Sample:
    """A call of an operator, and what its rule should say of it."""

    text: str
    """The rule as printed; after a semicolon, the inputs that may be partial together."""
    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    divided: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """For an input, the shape with dims divided into factors, as a view of it elsewhere in a graph would."""
    tolerance: float = 1e-12
    device: str = "cpu"
    reference: Callable[..., Any] | None = None
    """What computes the same where the operator cannot run here: ways that still call the operator are not run."""

    def __str__(self) -> str:
        return f"{self.op}: {self.text}"


def sample(
    text: str,
    op: Any,
    *args: Any,
    divided: Mapping[int, tuple[int, ...]] | None = None,
    tolerance: float = 1e-12,
    device: str = "cpu",
    reference: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Sample:
    return Sample(text, op, args, kwargs, divided or {}, tolerance, device, reference)


class Call:
    """A call of one operator as a program, with the tensors that go into it."""

    def __init__(self, sample: Sample) -> None:
        generator = torch.Generator().manual_seed(0)
        leaves, structure = tree_flatten((list(sample.args), dict(sample.kwargs)))
        self.sample = sample
        self.tensors = [leaf.draw(generator) for leaf in leaves if isinstance(leaf, Tensor)]
        drawn = iter(self.tensors)
        self.args, self.kwargs = tree_unflatten(
            [next(drawn) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure
        )
        graph, mode = fx.Graph(), fake_tensor_mode()
        given = []
        for i, tensor in enumerate(self.tensors):
            given.append(graph.placeholder(f"input_{i}"))
            with mode:
                given[-1].meta["val"] = torch.empty(tensor.shape, dtype=tensor.dtype, device=sample.device)
        nodes = iter(given)
        args, kwargs = tree_unflatten([next(nodes) if isinstance(x, Tensor) else x for x in leaves], structure)
        self.node = graph.call_function(sample.op, tuple(args), kwargs)
        fakes = fx.map_arg((self.node.args, self.node.kwargs), lambda node: node.meta["val"])
        with mode:
            self.node.meta["val"] = sample.op(*fakes[0], **fakes[1])
        self.given = given
        self.program = self._program(graph)

    def _program(self, graph: fx.Graph) -> Program:
        made = output_tensors(self.node)
        results = [self.node]
        if isinstance(self.node.meta["val"], tuple | list):
            results = []
            for i, tensor in enumerate(made):
                if tensor is not None:
                    results.append(graph.call_function(operator.getitem, (self.node, i)))
                    results[-1].meta["val"] = tensor
        graph.output(tuple(results))
        structure = Structure.flatten(())[1]
        return Program(
            graph_module=fx.GraphModule(torch.nn.Module(), graph),
            inputs=tuple(Input(kind="user", target=i) for i in range(len(self.tensors))),
            outputs=tuple(Output(kind="user", target=i) for i in range(len(results))),
            input_structure=structure,
            output_structure=structure,
            constants={},
        )

    def expected(self) -> list[torch.Tensor]:
        """The results of the operator on whole tensors."""
        compute = self.sample.reference or self.sample.op
        result = compute(*self.args, **self.kwargs)
        every = list(result) if isinstance(result, tuple | list) else [result]
        fakes = output_tensors(self.node)
        return [tensor for tensor, fake in zip(every, fakes, strict=True) if fake is not None]


class Bench(Call):
    """A call whose operator is run in the ways that its rule allows."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        self.rule: Rule = rule_of(self.node)
        self.options = self._options()
        self.whole = self.expected() if sample.device == "cpu" else []

    def _options(self) -> Options:
        """The options of the operator, where its tensors are also seen as divided."""
        graph, given = self.program.graph, self.given
        views = {}
        for i, shape in self.sample.divided.items():
            view = graph.call_function(aten.reshape.default, (given[i], list(shape)))
            view.meta["val"] = given[i].meta["val"].reshape(shape)
            views[view] = rule_of(view)
        atoms = find_atoms(graph, {self.node: self.rule, **views})
        for view in views:
            graph.erase_node(view)
        inputs = tuple(atoms[argument, 0] for argument in tensor_arguments(self.node))
        outputs = tuple(None if t is None else atoms[self.node, i] for i, t in enumerate(self.rule.outputs))
        return Options(self.rule, inputs, outputs)

    def pairs(self) -> Iterator[tuple[Grid, Strategy]]:
        """Every pair of choices for two like axes; for axes of 4 and 2, each choice for both, and with the next one.

        Axes of 3 and 2 leave padding in most dims.
        """
        choices = self.options.choices()
        yield from self._each(Grid(2, 2, 1, 1), combinations_with_replacement(choices, 2), ("x", "y"))
        cuts = choices[1:]
        unlike = [*((cut, cut) for cut in cuts), *zip(cuts, [*cuts[1:], *cuts[:1]], strict=True)]
        unlike = unlike if len(cuts) > 1 else unlike[:1]
        yield from self._each(Grid(4, 1, 1, 2), unlike, ("x", "data"))
        uneven = self._each(Grid(3, 2, 1, 1), unlike, ("x", "y"))
        yield from ((grid, s) for grid, s in uneven if not all(p.is_even(grid) for p in s.inputs))

    def _each(
        self, grid: Grid, chosen: Iterable[tuple[Choice, ...]], axes: Sequence[str]
    ) -> Iterator[tuple[Grid, Strategy]]:
        for combination in chosen:
            strategy = self.options.strategy(dict(zip(axes, combination, strict=True)), grid)
            if strategy is not None:
                yield grid, strategy

    def localized(self, strategy: Strategy, grid: Grid) -> Program:
        """The program of a rank that runs the operator in this way."""
        note(self.node, strategy=strategy, placements=strategy.outputs)
        inputs = [replace(i, placement=p) for i, p in zip(self.program.inputs, strategy.inputs, strict=True)]
        lies = [p for p, t in zip(strategy.outputs, output_tensors(self.node), strict=True) if t is not None]
        outputs = [replace(o, placement=p) for o, p in zip(self.program.outputs, lies, strict=True)]
        program = replace(self.program, inputs=tuple(inputs), outputs=tuple(outputs))
        return Localize(grid=grid, cost_model=_MODEL).run(program)

    def run(self, strategy: Strategy, grid: Grid) -> Iterator[tuple[torch.Tensor, torch.Tensor, Placement]]:
        """Each result of the whole operator, the values of all ranks with nothing pending, and their placement."""
        local = self.localized(strategy, grid)
        if self.sample.reference and any(node.target is self.sample.op for node in local.graph.nodes):
            return
        virtual = VirtualGrid(grid)
        stacked = [
            with_junk(stack(virtual, t, p), virtual, t, p) for t, p in zip(self.tensors, strategy.inputs, strict=True)
        ]
        coordinates = [virtual.coordinate(str(i.target)) for i in local.inputs if i.kind == "coordinate"]
        results = virtual.run(local.graph_module, [*stacked, *coordinates])
        for expected, found, output in zip(self.whole, results, local.outputs, strict=True):
            assert found is not None
            assert output.placement is not None
            yield expected, reduced(found, output.placement, grid), output.placement


def stack(virtual: VirtualGrid, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """The values of all ranks; those of a partial sum are random, and add up to the tensor."""
    whole = placement.reduced()
    pending = [axis for axis, _ in placement.partial]
    if not pending:
        return virtual.place(tensor, whole)
    assert {kind for _, kind in placement.partial} == {"sum"}
    terms = list(product(*(range(virtual.grid[axis]) for axis in pending)))
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) for _ in terms[1:]]
    parts.append(tensor - sum(parts, torch.zeros_like(tensor)))
    stacked = virtual.place(tensor, whole).clone()
    for positions, part in zip(terms, parts, strict=True):
        here = torch.ones(virtual.grid.size, dtype=torch.bool)
        for axis, position in zip(pending, positions, strict=True):
            here &= virtual.coordinate(axis) == position
        stacked[here] = virtual.place(part, whole)[here]
    return stacked


def padding(virtual: VirtualGrid, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Which values of all ranks are padding."""
    return virtual.place(torch.ones(tensor.shape), placement.reduced()) == 0


def with_junk(stacked: torch.Tensor, virtual: VirtualGrid, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """The values of all ranks, in padding what must not be looked at: NaN, or positions that do not exist."""
    if placement.is_even(virtual.grid):
        return stacked
    junk = True if tensor.dtype == torch.bool else torch.nan if tensor.is_floating_point() else 10**9
    return stacked.masked_fill(padding(virtual, tensor, placement), junk)


def reduced(stacked: torch.Tensor, placement: Placement, grid: Grid) -> torch.Tensor:
    """The values of all ranks once what is pending is summed up or maximised, `[*grid in CUT_ORDER, *local shape]`."""
    spread = stacked.reshape(*(grid[axis] for axis in CUT_ORDER), *stacked.shape[1:])
    for axis, kind in placement.partial:
        dim = CUT_ORDER.index(axis)
        total = spread.sum(dim, keepdim=True) if kind == "sum" else spread.amax(dim, keepdim=True)
        spread = total.to(stacked.dtype).expand(spread.shape)
    return spread


def check(bench: Bench, strategy: Strategy, grid: Grid) -> None:
    """Raise `AssertionError` unless every rank holds its part of what the whole operator computes."""
    for expected, found, placement in bench.run(strategy, grid):
        about = f"{bench.sample}\non {grid}\n{', '.join(map(str, strategy.inputs))} -> {placement}"
        virtual = VirtualGrid(grid)
        parts = virtual.place(expected, placement.reduced()).reshape(found.shape)
        if not placement.is_even(grid):
            found = found.masked_fill(padding(virtual, expected, placement).reshape(found.shape), 0)
        inexact = expected.is_floating_point() or expected.is_complex()
        tolerance = bench.sample.tolerance if inexact else 0.0
        message = _message(about)
        torch.testing.assert_close(found, parts, rtol=tolerance, atol=tolerance, equal_nan=True, msg=message)
        for dim, axis in enumerate(CUT_ORDER):
            if axis not in placement.reduced().axes:
                assert torch.equal(found, found.narrow(dim, 0, 1).expand_as(found)), (
                    f"{about}\ncopies differ along {axis}"
                )


def _message(about: str) -> Callable[[str], str]:
    return lambda text: f"{about}\n{text}"


def printed(rule: Rule) -> str:
    """A rule and, after semicolons, the inputs that may be partial together."""
    return "; ".join([str(rule), *(" ".join(map(str, sorted(inputs))) for inputs in rule.linear)])
