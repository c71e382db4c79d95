"""The classic schemes: what they communicate, and that the free search finds them where they are the cheapest."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from axograph.capture import Program, capture, facts
from axograph.cost_model import Collective, Compute, CostModel, RingModel
from axograph.cost_model.axonn_formulas import LinearLayer, backward_collectives, forward_collectives
from axograph.errors import PlanError
from axograph.grid import Grid
from axograph.passes.localize import Localize
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.shard import Shard
from axograph.passes.simplify import Simplify
from axograph.passes.split import Split
from axograph.plan import SCHEMES, MatmulPlacement, Plan

ROWS = 4096


@dataclass(frozen=True)
class FlatModel:
    """Every rank sends as fast to any other, in rings: what the formulas suppose."""

    def compute_s(self, work: Compute) -> float:
        return max(work.flops / 1e14, work.size_bytes / 2e12)

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        ranks = grid.extent(collective.axes)
        rounds = 2 * (ranks - 1) if collective.kind == "all_reduce" else ranks - 1
        return rounds * (collective.size_bytes / ranks / 1e11 + 1e-9)

    def hold_s(self, size_bytes: float) -> float:
        return size_bytes * 2e-11


class Stack(nn.Module):
    """Linear layers without biases."""

    def __init__(self, *features: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n, bias=False) for k, n in itertools.pairwise(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x * x).sum()


class Block(nn.Module):
    def __init__(self, features: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(features)
        self.norm_2 = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, features = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, features))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, features: int = 1024, heads: int = 8, hidden: int = 4096, vocabulary: int = 4096) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, features)
        self.blocks = nn.ModuleList(Block(features, heads, hidden) for _ in range(2))
        self.head = nn.Linear(features, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


FLAT = FlatModel()


def stack(*features: int) -> Program:
    with torch.device("meta"):
        return Normalize().run(capture(Stack(*features), (torch.empty(ROWS, features[0]),)))


def gpt(batch: int, length: int, **sizes: int) -> Program:
    with torch.device("meta"):
        return Normalize().run(capture(Gpt(**sizes), (torch.zeros(batch, length, dtype=torch.int64),)))


def shard(program: Program, grid: Grid, scheme: str | None, model: CostModel) -> Program:
    return Shard(grid=grid, cost_model=model, scheme=scheme, batch_dims={0: 0}).run(program)


def plan_of(program: Program, grid: Grid, scheme: str | None = None, model: CostModel = FLAT) -> Plan:
    plan = shard(program, grid, scheme, model).plan
    assert plan is not None
    return plan


def communicated(program: Program) -> Counter[tuple[str, tuple[str, ...], float]]:
    """What a program moves, but for single numbers such as the loss."""
    found = [facts(node).collective for node in program.graph.nodes]
    return Counter((c.kind, c.axes, float(c.size_bytes)) for c in found if c is not None and c.size_bytes > 8)


def halves(program: Program, grid: Grid, scheme: str) -> tuple[Plan, Program, Program]:
    sharded = shard(program, grid, scheme, FLAT)
    local = Simplify().run(Localize(grid=grid, cost_model=FLAT).run(sharded))
    forward = Split().run(local)
    assert sharded.plan is not None
    assert forward.backward is not None
    return sharded.plan, forward, forward.backward


def is_transposed(placed: MatmulPlacement) -> bool:
    return "x" in placed.k or "y" in placed.n


GRIDS = [(2, 2, 2, 2), (2, 4, 1, 2), (4, 1, 2, 1), (1, 2, 4, 1), (1, 1, 2, 2), (2, 2, 1, 1)]


@pytest.mark.parametrize("sizes", GRIDS, ids=str)
def test_axonn_moves_what_the_formulas_say(sizes: tuple[int, int, int, int]) -> None:
    grid, features = Grid.of(sizes), (1024, 2048, 1024, 2048, 1024)
    plan, forward, backward = halves(stack(*features), grid, "axonn")
    layers = [
        LinearLayer(m=ROWS, k=placed.shape[1], n=placed.shape[2], element_bytes=4, transposed=is_transposed(placed))
        for placed in plan.values()
    ]
    expected = Counter(described(c) for layer in layers for c in forward_collectives(layer, grid))
    assert communicated(forward) == expected
    expected = Counter(described(c) for layer in layers for c in backward_collectives(layer, grid))
    # The input of the first layer takes no gradient: W is not gathered again, and there is no dI.
    first = layers[0]
    expected.subtract(
        described(c) for c in backward_collectives(first, grid)
        if c.kind == "all_gather" or c.axes == (first.output_axis,)
    )  # fmt: skip
    assert communicated(backward) == +expected


def described(collective: Collective) -> tuple[str, tuple[str, ...], float]:
    return (collective.kind, collective.axes, float(collective.size_bytes))


def test_axonn_alternates() -> None:
    matmuls = plan_of(stack(*[1024] * 6), Grid(2, 4, 2, 2), "axonn").values()
    for placed, following in itertools.pairwise(matmuls):
        assert is_transposed(placed) != is_transposed(following)
        assert placed.m == ("data", "z")


def test_megatron_sums_once_forward_and_once_backward_for_each_pair() -> None:
    features, hidden, grid = 1024, 4096, Grid(2, 2, 1, 2)
    program = stack(features, hidden, features, hidden, features)
    plan, forward, backward = halves(program, grid, "megatron")
    assert [str(placed) for placed in plan.values()] == ["m/data k n/x.y", "m/data k/x.y n"] * 2
    activations = ("all_reduce", ("x", "y"), ROWS * features * 4 / grid.data)
    weights = ("all_reduce", ("data",), features * hidden * 4 / 4)
    assert communicated(forward) == Counter({activations: 2})
    # The first pair's input takes no gradient.
    assert communicated(backward) == Counter({activations: 1, weights: 4})


def test_fsdp_gathers_twice_and_scatters_once() -> None:
    size = 1024 * 2048 * 4.0
    _, forward, backward = halves(stack(1024, 2048, 1024, 2048), Grid(1, 1, 4, 1), "fsdp")
    gather, scatter = ("all_gather", ("z",), size), ("reduce_scatter", ("z",), size)
    assert communicated(forward) == Counter({gather: 3})
    assert communicated(backward) == Counter({gather: 2, scatter: 3})


def test_fsdp_over_several_axes_goes_axis_by_axis() -> None:
    size = 1024 * 2048 * 4.0
    _, forward, backward = halves(stack(1024, 2048, 1024, 2048), Grid(2, 1, 2, 2), "fsdp")
    assert communicated(forward).total() == 6
    assert communicated(forward)["all_gather", ("x",), size] + communicated(forward)["all_gather", ("z",), size] == 3
    kinds = Counter(kind for kind, _, _ in communicated(backward).elements())
    assert kinds == Counter({"all_gather": 4, "reduce_scatter": 6, "all_reduce": 3})
    assert communicated(backward)["all_reduce", ("data",), size / 4] == 3


def test_ddp_sums_each_weight_once() -> None:
    size = 1024 * 2048 * 4.0
    plan, forward, backward = halves(stack(1024, 2048, 1024, 2048), Grid(1, 1, 2, 2), "ddp")
    assert all(placed.stored is not None and not placed.stored.axes for placed in plan.values())
    assert communicated(forward) == Counter()
    assert communicated(backward) == Counter({("all_reduce", ("z", "data"), size): 3})


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (4, 4, 1, 1), (2, 4, 2, 1)], ids=str)
def test_the_free_search_finds_axonn_in_a_stack_of_square_layers(sizes: tuple[int, int, int, int]) -> None:
    """Between the first layer, whose input lies whole on every rank, and the last, whose output nobody needs whole."""
    grid, program = Grid.of(sizes), stack(*[4096] * 7)
    first, *matmuls, _ = plan_of(program, grid).values()
    assert (first.k, first.n) == ((), ("x", "y"))
    for placed, following in itertools.pairwise(matmuls):
        assert {placed.k, placed.n} == {("x",), ("y",)}
        assert (placed.k, placed.n) == (following.n, following.k)
        assert placed.m == tuple(axis for axis in ("data", "z") if grid[axis] > 1)
        assert placed.stored is not None
        assert ("z" in placed.stored.axes) == (grid.z > 1)


@pytest.mark.parametrize("sizes", [(4, 4, 2, 1), (2, 4, 2, 2)], ids=str)
def test_the_free_search_finds_axonn_in_a_gpt(sizes: tuple[int, int, int, int]) -> None:
    """Where z and data have taken the whole batch and layers are square."""
    grid = Grid.of(sizes)
    program = gpt(grid.z * grid.data, 2048, features=2048, hidden=2048, heads=16)
    plan = plan_of(program, grid)
    assert plan.cost_s == pytest.approx(plan_of(program, grid, "axonn").cost_s, rel=1e-9)
    for i in range(2):
        qkv, out, up, down = (plan[f"blocks.{i}.{name}"] for name in ("qkv", "out", "up", "down"))
        assert {qkv.k, qkv.n} == {("x",), ("y",)}
        assert (qkv.k, qkv.n) == (out.n, out.k) == (up.k, up.n) == (down.n, down.k)
        assert all(placed.stored is not None and "z" in placed.stored.axes for placed in (qkv, out, up, down))


def test_a_wide_mlp_is_cut_as_megatron_does() -> None:
    program = stack(1024, 8192, 1024, 8192, 1024)
    plan = plan_of(program, Grid(2, 2, 1, 1))
    assert [str(placed) for placed in plan.values()] == ["m k n/x.y", "m k/x.y n"] * 2


COMPARED = [(2, 2, 2, 2), (1, 1, 4, 1), (4, 1, 1, 1), (1, 2, 1, 2)]


@pytest.mark.parametrize("name", ["stack", "gpt"])
def test_no_scheme_is_cheaper_than_the_free_search(name: str) -> None:
    program = stack(1024, 4096, 1024, 4096) if name == "stack" else gpt(16, 256)
    for sizes in COMPARED if name == "gpt" else [*COMPARED, (2, 4, 8, 16)]:
        grid = Grid.of(sizes)
        free = plan_of(program, grid, None, RingModel())
        for scheme in SCHEMES:
            pinned = plan_of(program, grid, scheme, RingModel())
            assert free.cost_s <= pinned.cost_s * (1 + 1e-9), f"{scheme} on {grid}\n{pinned}\n{free}"


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(PlanError, match="no scheme is called 'zero'") as caught:
        Scheme.named("zero")
    assert "axonn, megatron, fsdp, ddp" in str(caught.value)
