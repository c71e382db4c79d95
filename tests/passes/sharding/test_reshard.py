"""Reshards: run on the virtual grid against the tensor itself, and priced against a plain search over all ways."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import fx

from axograph.capture import Facts
from axograph.cost_model import RingModel
from axograph.grid import AXES, CUT_ORDER, Grid
from axograph.passes.sharding.collectives import LocalEmitter
from axograph.passes.sharding.moves import Code, align, find_ways
from axograph.passes.sharding.reshard import Resharder
from axograph.placement import Placement, SubDim
from axograph.runtime.parts import stack_parts
from axograph.runtime.virtual_grid import VirtualGrid
from axograph.torch_private import fake_tensor_mode

GRIDS = [(2, 2, 2, 2), (4, 1, 2, 2), (1, 2, 4, 1), (2, 1, 1, 1), (1, 1, 1, 16)]
SHAPES = [((16,),), ((16,), (32,)), ((4, 16), (16,)), ((16,), (3, 16, 4)), ((8, 2, 4),), ((1,), (16,), (2, 8))]


def random_placement(
    rng: random.Random, shape: Sequence[Sequence[int]], grid: Grid, reductions: Sequence[str] = ()
) -> Placement:
    """Each axis cuts some atom, is pending or holds copies; axes come in any order."""
    atoms = [(d, s) for d, dim in enumerate(shape) for s in range(len(dim))]
    while True:
        cuts: dict[tuple[int, int], list[str]] = {}
        pending: dict[str, str] = {}
        axes = [axis for axis in CUT_ORDER if grid[axis] > 1]
        if rng.random() < 0.2:
            rng.shuffle(axes)
        for axis in axes:
            choice = rng.choice([*atoms, None, *reductions])
            if isinstance(choice, str):
                pending[axis] = choice
            elif choice is not None:
                cuts.setdefault(choice, []).append(axis)
        dims = tuple(
            tuple(SubDim(size, tuple(cuts.get((d, s), ()))) for s, size in enumerate(dim))
            for d, dim in enumerate(shape)
        )
        if all(sub.size % grid.extent(sub.axes) == 0 for dim in dims for sub in dim):
            return Placement(dims, tuple((axis, pending[axis]) for axis in AXES if axis in pending))


def parts(tensor: torch.Tensor, placement: Placement, grid: Grid, seed: int) -> torch.Tensor:
    """The stacked parts of a tensor, [*grid, *local]; where sums are pending, parts that differ and add up to it."""
    stacked = stack_parts(tensor, placement.reduced(), grid).clone()
    generator = torch.Generator().manual_seed(seed)
    for axis, kind in placement.partial:
        dim = CUT_ORDER.index(axis)
        noise = torch.randint(-50, 50, stacked.shape, generator=generator).to(stacked.dtype)
        first = noise.narrow(dim, 0, 1)
        if kind == "sum":
            rest = noise.sum(dim, keepdim=True) - first
            noise.narrow(dim, 0, 1).copy_(stacked.narrow(dim, 0, 1) - rest.to(stacked.dtype))
            stacked = noise
        else:  # one rank has the value, the others less
            lower = stacked - noise.abs()
            lower.narrow(dim, 0, 1).copy_(stacked.narrow(dim, 0, 1))
            stacked = lower
    return stacked


def reduced_parts(stacked: torch.Tensor, placement: Placement) -> torch.Tensor:
    for axis, kind in placement.partial:
        dim = CUT_ORDER.index(axis)
        total = stacked.sum(dim, keepdim=True) if kind == "sum" else stacked.amax(dim, keepdim=True)
        stacked = total.expand(stacked.shape)
    return stacked


def check(tensor: torch.Tensor, source: Placement, target: Placement, grid: Grid, seed: int = 0) -> None:
    """Emit the reshard, run it for all ranks, and compare every rank's part."""
    names = {torch.int64: "i64", torch.bool: "b8", torch.complex128: "c128"}
    path = Resharder(grid, RingModel()).path(source, target, names.get(tensor.dtype, "f64"), tensor.element_size())
    assert path.steps is not None
    assert path.cost_s == pytest.approx(math.fsum(step.cost_s for step in path.steps))
    emit = LocalEmitter(grid)
    with fake_tensor_mode():
        local = torch.empty(source.local_shape(grid), dtype=tensor.dtype)
        scalar = torch.empty((), dtype=torch.int64)
    x = emit.placeholder("x", local, Facts())
    for axis in grid.cut_axes:
        emit.coordinates[axis] = emit.placeholder(f"coordinate_{axis}", scalar, Facts())
    made = emit.reshard(x, source, path, "")
    emit.graph.output((made,))
    assert tuple(made.meta["val"].shape) == target.local_shape(grid)
    assert made.meta["val"].dtype == tensor.dtype
    virtual = VirtualGrid(grid)
    stacked = parts(tensor, source, grid, seed)
    coordinates = [virtual.coordinate(axis) for axis in grid.cut_axes]
    module = fx.GraphModule(torch.nn.Module(), emit.graph)
    (result,) = virtual.run(module, [stacked.reshape(grid.size, *source.local_shape(grid)), *coordinates])
    assert result is not None
    shape = [*(grid[axis] for axis in CUT_ORDER), *target.local_shape(grid)]
    found = reduced_parts(result.reshape(shape), target)
    torch.testing.assert_close(found, stack_parts(tensor, target.reduced(), grid), rtol=0, atol=0)


def values(shape: Sequence[Sequence[int]], dtype: torch.dtype) -> torch.Tensor:
    sizes = [math.prod(dim) for dim in shape]
    count = math.prod(sizes)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=torch.Generator().manual_seed(count)).bool()
    whole = torch.arange(count, dtype=torch.int64)
    if dtype.is_complex:
        return torch.complex(whole.double(), -whole.double()).to(dtype).reshape(sizes)
    return whole.to(dtype).reshape(sizes)


@pytest.mark.parametrize("sizes", GRIDS)
@pytest.mark.parametrize("reductions", [(), ("sum",), ("max",)], ids="-".join)
def test_every_rank_gets_its_part(sizes: tuple[int, int, int, int], reductions: tuple[str, ...]) -> None:
    rng = random.Random(f"{sizes} {reductions}")
    grid = Grid.of(sizes)
    for seed in range(15):
        shape = rng.choice(SHAPES)
        source = random_placement(rng, shape, grid, reductions)
        target = random_placement(rng, shape, grid)
        check(values(shape, torch.float64), source, target, grid, seed)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex128], ids=str)
def test_other_element_types(dtype: torch.dtype) -> None:
    rng = random.Random(str(dtype))
    grid = Grid(2, 2, 2, 2)
    reductions = () if dtype == torch.bool else ("sum",)
    for seed in range(15):
        shape = rng.choice(SHAPES)
        source, target = random_placement(rng, shape, grid, reductions), random_placement(rng, shape, grid)
        check(values(shape, dtype), source, target, grid, seed)


def test_pending_sums_that_both_want_stay() -> None:
    grid = Grid(2, 2, 2, 2)
    source, target = Placement.parse("[16/data.z, 32/x] partial(y)"), Placement.parse("[16/data, 32/x.z] partial(y)")
    check(values(((16,), (32,)), torch.float64), source, target, grid)


def test_a_sum_cannot_be_made_pending() -> None:
    path = Resharder(Grid(2, 1, 1, 1), RingModel()).path(
        Placement.parse("[16]"), Placement.parse("[16] partial(x)"), "f32", 4
    )
    assert path.steps is None
    assert path.cost_s == math.inf


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ("[64, 32] partial(z)", "[64, 32/z]", ["reduce_scatter z"]),
        ("[64, 32] partial(z, data)", "[64, 32/z]", ["reduce_scatter z", "all_reduce data"]),
        ("[64, 32] partial(x, y)", "[64, 32]", ["all_reduce x.y"]),
        ("[64/x, 32]", "[64, 32/x]", ["all_to_all x"]),
        ("[64, 32]", "[64, 32/x]", ["slice x"]),
        ("[64/x, 32/z]", "[64/x, 32]", ["all_gather z"]),
        ("[64/z, 32]", "[64/x.z, 32]", ["all_gather z", "slice x", "slice z"]),
    ],
)
def test_the_cheapest_steps(source: str, target: str, kinds: list[str]) -> None:
    path = Resharder(Grid(2, 2, 2, 2), RingModel()).path(Placement.parse(source), Placement.parse(target), "f32", 4096)
    assert path.steps is not None
    assert sorted(f"{step.kind} {'.'.join(step.axes)}" for step in path.steps) == sorted(kinds)


def cheapest_of_all(source: Placement, target: Placement, grid: Grid, size_bytes: int) -> float:
    """Dijkstra over the states, each way priced step by step on real placements: slow and plain."""
    resharder = Resharder(grid, RingModel())
    aligned = align(Code.of(source), Code.of(target))
    ways = find_ways(aligned.pattern)
    bound = resharder._bind(aligned)
    prices = resharder._prices_s(bound, size_bytes // grid.extent(aligned.common), "f32")
    counter = itertools.count()
    heap = [(0.0, next(counter), len(ways.graph) - 1)]
    done: set[int] = set()
    while heap:
        cost_s, _, state = heapq.heappop(heap)
        if state == ways.goal:
            return cost_s
        if state not in done:
            done.add(state)
            for move, after in ways.graph[state]:
                heapq.heappush(heap, (cost_s + prices[move], next(counter), after))
    return math.inf


def test_costs_and_tables_agree_with_a_plain_search() -> None:
    rng = random.Random(3)
    grid = Grid(2, 4, 2, 2)
    resharder = Resharder(grid, RingModel())
    shape = ((16,), (32, 16))
    sources = [random_placement(rng, shape, grid, ("sum",)) for _ in range(25)]
    targets = [random_placement(rng, shape, grid, ("sum",)[: i % 2]) for i in range(25)]
    size_bytes = 16 * 32 * 16 * 4
    table = resharder.table(resharder.number(sources), resharder.number(targets), size_bytes, "f32")
    for (i, source), (j, target) in itertools.product(enumerate(sources), enumerate(targets)):
        assert table[i, j] == pytest.approx(cheapest_of_all(source, target, grid, size_bytes), rel=1e-9)
        assert table[i, j] == resharder.cost_s(source, target, "f32", 4)
        assert table[i, j] == resharder.path(source, target, "f32", 4).cost_s
