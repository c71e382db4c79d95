"""Boxed functions: they empty their list, write in place only where nobody sees it, and give what the graph gives."""

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import fx, nn

import axograph
from axograph.capture.program import Facts
from axograph.passes.rewrite import Emitter
from axograph.runtime.boxed import boxed
from axograph.runtime.native import FUNCTIONS, METHODS
from axograph.torch_private import collective_op

aten = torch.ops.aten


def graph_of(build: Any, *inputs: torch.Tensor) -> fx.Graph:
    emit = Emitter()
    placeholders = [emit.placeholder(f"in{i}", t.to("meta"), Facts()) for i, t in enumerate(inputs)]
    emit.graph.output(build(emit, *placeholders))
    return emit.graph


def test_the_list_is_emptied_and_values_die_with_their_last_use() -> None:
    alive: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        alive.append(seen() is not None)
        return x

    graph = fx.Graph()
    first = graph.placeholder("first")
    doubled = graph.call_function(torch.mul, (first, 2))
    graph.output((graph.call_function(look, (doubled,)),))
    tensor = torch.ones(3)
    seen = weakref.ref(tensor)
    inputs = [tensor]
    del tensor
    (result,) = boxed(graph)(inputs)
    assert inputs == []
    assert alive == [False]
    assert result.tolist() == [2, 2, 2]


def test_a_sum_is_written_over_a_product_that_nothing_else_needs() -> None:
    def build(emit: Emitter, a: fx.Node, b: fx.Node) -> tuple[fx.Node, ...]:
        return (emit.call(aten.add.Tensor, emit.call(aten.mm.default, a, b), a),)

    a, b = torch.rand(4, 4), torch.rand(4, 4)
    graph = graph_of(build, a, b)
    run = boxed(graph)
    assert "add_" in run.__self__.code  # type: ignore[attr-defined]
    (result,) = run([a.clone(), b])
    torch.testing.assert_close(result, a @ b + a)


@pytest.mark.parametrize(("kind", "held"), [("all_gather_into_tensor", True), ("all_reduce", False)])
def test_what_a_collective_reads_lives_until_the_wait(kind: str, held: bool) -> None:
    """An all-reduce has copied it by then."""
    graph = fx.Graph()
    sent, other = graph.placeholder("sent"), graph.placeholder("other")
    start = graph.call_function(collective_op(kind), (sent, 2, "x"))
    product = graph.call_function(aten.mm.default, (other, other))
    graph.output((graph.call_function(collective_op("wait_tensor"), (start,)), product))
    lines = boxed(graph).__self__.code.splitlines()  # type: ignore[attr-defined]
    dies = next(at for at, line in enumerate(lines) if "sent = None" in line)
    assert ("wait" in lines[dies]) == held


@pytest.mark.parametrize("kind", ["input", "second use", "output", "view", "broadcast"])
def test_what_somebody_else_sees_is_not_written_over(kind: str) -> None:
    def build(emit: Emitter, a: fx.Node, b: fx.Node) -> tuple[fx.Node, ...]:
        product = emit.call(aten.mm.default, a, b)
        if kind == "input":
            return (emit.call(aten.add.Tensor, a, b),)
        if kind == "second use":
            return (emit.call(aten.add.Tensor, product, a), emit.call(aten.mul.Tensor, product, a))
        if kind == "output":
            return (product, emit.call(aten.add.Tensor, product, a))
        if kind == "view":
            return (emit.call(aten.add.Tensor, emit.call(aten.permute.default, product, [1, 0]), a),)
        row = emit.call(aten.sum.dim_IntList, product, [0], True)
        return (emit.call(aten.add.Tensor, row, a),)

    a, b = torch.rand(4, 4), torch.rand(4, 4)
    graph = graph_of(build, a, b)
    wanted = fx.GraphModule(nn.Module(), copy.deepcopy(graph))(a, b)
    kept = a.clone()
    run = boxed(graph)
    assert "add_" not in run.__self__.code  # type: ignore[attr-defined]
    torch.testing.assert_close(tuple(run([a, b])), wanted)
    assert torch.equal(a, kept)


SAMPLES: dict[Any, tuple[Any, ...]] = {
    aten.addmm.default: ((3,), (2, 4), (4, 3)),
    aten.bmm.default: ((2, 3, 4), (2, 4, 3)),
    aten.mm.default: ((2, 4), (4, 3)),
    aten.cat.default: ([(2, 3), (2, 3)], 1),
    aten.div.Scalar: ((2, 3), 3.0),
    aten.mul.Scalar: ((2, 3), 3.0),
    aten.pow.Tensor_Scalar: ((2, 3), 2.0),
    aten.masked_fill.Scalar: ((2, 3), torch.tensor([True, False, True]), 0.5),
    aten.mean.dim: ((2, 3), [1], True),
    aten.sum.dim_IntList: ((2, 3), [0], False),
    aten.native_layer_norm.default: ((2, 3), [3], (3,), (3,), 1e-5),
    aten.embedding.default: ((5, 3), torch.tensor([1, 4])),
    aten.gather.default: ((2, 3), 1, torch.tensor([[1], [2]])),
    aten.index_select.default: ((2, 3), 1, torch.tensor([1])),
    aten.bitwise_and.Tensor: (torch.tensor([True, False]), torch.tensor([True, True])),
    aten.where.self: (torch.tensor([True, False, True]), (2, 3), (2, 3)),
    aten.add.Tensor: ((2, 3), (3,)),
    aten.sub.Tensor: ((2, 3), (3,)),
    aten.mul.Tensor: ((2, 3), (3,)),
    aten.div.Tensor: ((2, 3), (3,)),
}


@pytest.mark.parametrize("op", FUNCTIONS, ids=str)
def test_native_functions_equal_the_operators(op: Any) -> None:
    def fill(value: Any) -> Any:
        if isinstance(value, tuple):
            return torch.rand(value, generator=torch.Generator().manual_seed(sum(value))) + 0.5
        return [fill(item) if isinstance(item, tuple) else item for item in value] if isinstance(value, list) else value

    arguments = [fill(value) for value in SAMPLES.get(op, ((2, 3),))]
    torch.testing.assert_close(FUNCTIONS[op](*arguments), op(*arguments), rtol=0, atol=0)


def test_native_methods_exist() -> None:
    assert all(hasattr(torch.Tensor, name) for name in METHODS.values())


def test_gradients_have_the_layout_of_their_parameters() -> None:
    """So autograd takes them over as they are, without a copy."""
    module = axograph.parallelize(nn.Linear(8, 4), grid=(1, 1, 1, 1))
    module(torch.ones(2, 8)).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.stride() == module.weight.stride()
