"""The virtual grid: collectives against values made by hand, and operators against a loop over the ranks."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from axograph.grid import CUT_ORDER, Grid
from axograph.placement import Placement
from axograph.runtime.virtual_grid import VirtualGrid
from axograph.torch_private import collective_op

aten = torch.ops.aten
GRID = Grid(2, 2, 2, 2)
MESH = [dict(zip(CUT_ORDER, at, strict=True)) for at in torch.cartesian_prod(*[torch.arange(2)] * 4).tolist()]
"""The coordinate of each entry of a stack."""


def graph(build: Callable[..., Any], inputs: int) -> fx.GraphModule:
    """A graph of what `build` makes of the placeholders, given a function that emits an operator."""
    made = fx.Graph()
    placeholders = [made.placeholder(f"x{i}") for i in range(inputs)]

    def call(op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return made.call_function(op, args, kwargs)

    made.output(tuple(build(call, *placeholders)))
    return fx.GraphModule(nn.Module(), made)


def run(build: Callable[..., Any], *stacked: torch.Tensor) -> list[torch.Tensor | None]:
    return VirtualGrid(GRID).run(graph(build, len(stacked)), list(stacked))


def group(entry: int, axes: str) -> list[int]:
    """The entries of the stack that differ from one only along these axes, in their order."""
    same = [axis for axis in CUT_ORDER if axis not in axes.split(".")]
    return [i for i, at in enumerate(MESH) if all(at[axis] == MESH[entry][axis] for axis in same)]


def collective(name: str, *arguments: Any) -> Callable[..., Any]:
    def build(call: Callable[..., fx.Node], x: fx.Node) -> list[fx.Node]:
        return [call(collective_op("wait_tensor"), call(collective_op(name), x, *arguments))]

    return build


STACK = torch.randn(16, 4, 3)


def test_ranks_are_stacked_in_the_order_of_cuts() -> None:
    engine = VirtualGrid(GRID)
    for axis in CUT_ORDER:
        assert engine.coordinate(axis).tolist() == [at[axis] for at in MESH]


@pytest.mark.parametrize("axes", [*CUT_ORDER, "x.z", "data.y", "data.x.y.z"])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_all_reduce(axes: str, kind: str) -> None:
    (found,) = run(collective("all_reduce", kind, axes), STACK)
    assert found is not None
    for entry in range(16):
        members = STACK[group(entry, axes)]
        torch.testing.assert_close(found[entry], members.sum(0) if kind == "sum" else members.amax(0))


@pytest.mark.parametrize("axis", CUT_ORDER)
def test_all_gather(axis: str) -> None:
    (found,) = run(collective("all_gather_into_tensor", 2, axis), STACK)
    assert found is not None
    assert found.shape == (16, 8, 3)
    for entry in range(16):
        assert torch.equal(found[entry], torch.cat([STACK[i] for i in group(entry, axis)]))


@pytest.mark.parametrize("axis", CUT_ORDER)
def test_reduce_scatter(axis: str) -> None:
    (found,) = run(collective("reduce_scatter_tensor", "sum", 2, axis), STACK)
    assert found is not None
    assert found.shape == (16, 2, 3)
    for entry in range(16):
        whole = STACK[group(entry, axis)].sum(0)
        torch.testing.assert_close(found[entry], whole.chunk(2)[MESH[entry][axis]])


@pytest.mark.parametrize("axis", CUT_ORDER)
def test_all_to_all(axis: str) -> None:
    stack = torch.randn(16, 2, 3)
    (found,) = run(collective("all_to_all_single", [1, 1], [1, 1], axis), stack)
    assert found is not None
    for entry in range(16):
        at = MESH[entry][axis]
        assert torch.equal(found[entry], torch.stack([stack[i][at] for i in group(entry, axis)]))


def test_copies_are_reduced_as_the_values_of_all_ranks() -> None:
    def build(call: Callable[..., fx.Node], x: fx.Node) -> list[fx.Node]:
        return [call(collective_op("all_reduce"), call(aten.ones.default, [2]), "sum", "x.y"), x]

    found, _ = run(build, STACK)
    assert found is not None
    assert found.tolist() == [[4.0, 4.0]] * 16


def norm(call: Callable[..., fx.Node], x: fx.Node, w: fx.Node, b: fx.Node) -> list[fx.Node]:
    made = call(aten.native_layer_norm.default, x, [3], w, b, 1e-5)
    return [call(operator.getitem, made, i) for i in range(3)]


OPERATORS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "mm": (lambda call, a, b: [call(aten.mm.default, a, b)], [torch.randn(16, 4, 3), torch.randn(16, 3, 5)]),
    "softmax": (lambda call, x: [call(aten._softmax.default, x, -1, False)], [torch.randn(16, 4, 3)]),
    "embedding": (
        lambda call, w, i: [call(aten.embedding.default, w, i)],
        [torch.randn(16, 7, 3), torch.randint(0, 7, (16, 2, 2))],
    ),
    "layer norm": (norm, [torch.randn(16, 4, 3), torch.randn(16, 3), torch.randn(16, 3)]),
    "a constant of all ranks": (
        lambda call, x: [call(aten.add.Tensor, x, call(aten.arange.default, 3)), call(aten.zeros.default, [2])],
        [torch.randn(16, 4, 3)],
    ),
    "several results": (
        lambda call, x: [call(aten.cat.default, [x, call(aten.neg.default, x)], 1)],
        [torch.randn(16, 4, 3)],
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_gives_each_rank_what_it_would_have_alone(name: str) -> None:
    build, stacked = OPERATORS[name]
    found = run(build, *stacked)
    alone = graph(build, len(stacked))
    for entry in range(16):
        expected = alone(*(tensor[entry] for tensor in stacked))
        for ours, theirs in zip(found, expected, strict=True):
            assert ours is not None
            torch.testing.assert_close(ours[entry], theirs)


def test_attention_runs_for_all_ranks_at_once_and_repeats_a_mask() -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    q, k, v = (torch.randn(16, 2, 2, 4, 8) for _ in range(3))
    mask = torch.randn(16, 1, 1, 4, 4)

    def build(call: Callable[..., fx.Node], q: fx.Node, k: fx.Node, v: fx.Node, m: fx.Node) -> list[fx.Node]:
        made = call(op, q, k, v, 0.0, False, attn_mask=m)
        return [call(operator.getitem, made, 0), call(operator.getitem, made, 1)]

    output, sums = run(build, q, k, v, mask)
    assert output is not None
    assert sums is not None
    for entry in range(16):
        right = op(q[entry], k[entry], v[entry], 0.0, False, attn_mask=mask[entry])
        torch.testing.assert_close(output[entry], right[0])
        torch.testing.assert_close(sums[entry], right[1])


def test_results_that_are_none_stay_none() -> None:
    assert run(lambda call, x: [None, x], STACK)[0] is None


def test_a_global_tensor_goes_to_the_ranks_and_comes_back() -> None:
    engine = VirtualGrid(GRID)
    whole, placement = torch.randn(8, 6), Placement.parse("[8/x.z, 6/y]")
    stacked = engine.place(whole, placement)
    assert stacked.shape == (16, 2, 3)
    assert torch.equal(engine.gather(stacked, placement), whole)


def test_a_copy_of_the_engine_is_another_one_of_the_same_grid() -> None:
    engine = VirtualGrid(GRID)
    for other in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert other.grid == GRID
        assert other.coordinate("z").tolist() == engine.coordinate("z").tolist()
