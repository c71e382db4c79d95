"""Compiled compute: where a graph is cut, what is compiled once, in which layouts, and that numbers and order stay."""

from __future__ import annotations

import copy
import logging
import operator
import pickle
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import axograph
from axograph.capture.program import Facts
from axograph.errors import AxographError, UnsupportedError
from axograph.passes.rewrite import Emitter
from axograph.runtime import inductor as module
from axograph.runtime.boxed import boxed
from axograph.runtime.inductor import Inductor
from axograph.runtime.stretches import stretches
from axograph.torch_private import collective_op
from tests.interpreted import interpreted

aten = torch.ops.aten
CPU = torch.device("cpu")
START, WAIT = collective_op("all_reduce"), collective_op("wait_tensor")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[fx.Graph]:
    """Every graph handed to Inductor, which is replaced by an interpreter."""
    graphs: list[fx.Graph] = []

    def seen(graph: fx.Graph, inputs: Sequence[Any], mode: Any) -> Any:
        graphs.append(graph)
        return interpreted(graph, inputs, mode)

    monkeypatch.setattr(module, "compile_graph", seen)
    return graphs


def layer(emit: Emitter, x: fx.Node, weight: fx.Node) -> fx.Node:
    """A matmul, an activation, and the start and wait of an all-reduce, with a reshape on either side."""
    product = emit.call(aten.mm.default, x, weight)
    wide = emit.call(aten.tanh.default, emit.call(aten.add.Tensor, product, 1.0))
    started = emit.call(START, emit.call(aten.reshape.default, wide, [16]), "sum", "x")
    return emit.call(aten.reshape.default, emit.call(WAIT, started), [4, 4])


def two_layers() -> fx.Graph:
    emit = Emitter()
    x, first, second = (emit.placeholder(name, torch.empty(4, 4, device="meta"), Facts()) for name in "xuv")
    emit.graph.output((layer(emit, layer(emit, x, first), second),))
    return emit.graph


def test_collectives_stay_in_their_order_and_all_else_between_them_is_compiled() -> None:
    graph = two_layers()
    assert [[node.name for node in stretch.nodes] for stretch in stretches(graph)] == [
        ["mm", "add", "tanh", "reshape"],
        ["reshape_1", "mm_1", "add_1", "tanh_1", "reshape_2"],
    ]  # the last reshape stays: it is nothing to compile


def test_a_wait_is_never_crossed(compiled: list[fx.Graph]) -> None:
    calls = [n for n in Inductor(CPU)(two_layers()).nodes if n.op == "call_function"]
    kinds = [n.target.__name__ if not isinstance(n.target, torch._ops.OpOverload) else n.name for n in calls]
    stretch = ["_in_a_list", "restrided", "getitem"]
    assert kinds == [*stretch, "all_reduce", "wait_tensor", *stretch, "all_reduce_1", "wait_tensor_1", "reshape_3"]
    lists = [n for n in calls if n.target.__name__ == "_in_a_list"]
    assert [[a.name for a in n.args] for n in lists] == [["x", "u"], ["wait_tensor", "v"]]


def parallel(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Any:
    return axograph.parallelize(model, grid=(2, 1, 1, 2), sample_inputs=inputs, **options)


def test_identical_layers_are_compiled_once_and_the_schedule_stays(compiled: list[fx.Graph]) -> None:
    layers = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(4)]
    pm = parallel(nn.Sequential(*layers), torch.randn(4, 8), scheme="fsdp")
    compute = Inductor(CPU)
    for half in (pm._latest.program, pm._latest.program.backward):
        graph = half.graph_module.graph
        called = compute(graph)
        ours, before = ([n.target for n in g.nodes if "_c10d" in str(n.target)] for g in (called, graph))
        assert ours == before
        assert len(ours) >= 8
    count = sum(len(list(stretches(h.graph_module.graph))) for h in (pm._latest.program, pm._latest.program.backward))
    assert len(compiled) < count


def test_inputs_in_another_layout_are_brought_into_the_compiled_one(compiled: list[fx.Graph]) -> None:
    seen: list[tuple[int, ...]] = []
    run = module._restriding(lambda values: seen.extend(v.stride() for v in values) or values, [torch.empty(2, 3)])
    (made,) = run([torch.arange(6.0).reshape(3, 2).T])
    assert seen == [(3, 1)]
    assert made.tolist() == [[0, 2, 4], [1, 3, 5]]
    (same,) = run([given := torch.empty(2, 3)])
    assert same is given


def test_values_die_inside_the_stretch_that_uses_them_last(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[bool] = []

    def looking(graph: fx.Graph, inputs: Sequence[Any], mode: Any) -> tuple[Callable[[list[Any]], Any], list[Any]]:
        def run(values: list[Any]) -> Any:
            values.clear()
            alive.append(seen() is not None)
            return (torch.zeros(16),)

        with mode:
            return run, [torch.empty(16)]

    monkeypatch.setattr(module, "compile_graph", looking)
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(16, device="meta")
    graph.output((graph.call_function(aten.tanh.default, (graph.call_function(aten.exp.default, (x,)),)),))
    run = boxed(Inductor(CPU)(graph))
    tensor = torch.ones(16)
    seen = weakref.ref(tensor)
    given = [tensor]
    del tensor
    run(given)
    assert alive == [False]


@pytest.mark.parametrize(("dropout", "lengths"), [(0.0, [6]), (0.5, [2, 2])])
def test_attention_is_compiled_where_it_draws_no_random_numbers(dropout: float, lengths: list[int]) -> None:
    emit = Emitter()
    x = emit.placeholder("x", torch.empty(1, 1, 4, 4, device="meta"), Facts())
    queries = emit.call(aten.exp.default, emit.call(aten.tanh.default, x))
    attention = emit.call(aten._scaled_dot_product_flash_attention_for_cpu.default, queries, x, x, dropout)
    pick = emit.graph.call_function(operator.getitem, (attention, 0))
    pick.meta["val"] = attention.meta["val"][0]
    emit.graph.output((emit.call(aten.exp.default, emit.call(aten.tanh.default, pick)),))
    assert [len(stretch.nodes) for stretch in stretches(emit.graph)] == lengths


def test_an_error_names_the_modules_of_the_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(module, "compile_graph", fails)
    model = nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    with pytest.raises(UnsupportedError) as caught:
        axograph.parallelize(model, grid=(1, 1, 1, 1), sample_inputs=(torch.randn(2, 8),), compile=True)
    assert caught.value.summary == "Inductor does not compile 0 to 2"


def test_without_a_compiler_it_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing_compiler", lambda device: "no C++ compiler: g++ was not found")
    with pytest.raises(AxographError, match="given  no C\\+\\+ compiler"):
        axograph.parallelize(nn.Linear(2, 2), grid=(1, 1, 1, 1), compile=True)


def test_the_virtual_grid_says_that_it_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "axograph"):
        pm = axograph.parallelize(nn.Linear(2, 2), grid=(2, 1, 1, 1), compile=True)
    assert "compile=True changes nothing on the virtual grid" in caplog.text
    assert pm(torch.ones(2, 2)).shape == (2, 2)
    assert "recompute-pointwise" not in pm.stages


class Small(nn.Module):
    """A product, an activation and a softmax over it, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.up(x)
        g = torch.nn.functional.gelu(h, approximate="tanh")
        return {"loss": (torch.softmax(g, -1) * h).square().mean(), "h": h}


def test_inductor_gives_the_numbers_of_the_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = Small()
    pm = axograph.parallelize(copy.deepcopy(model), grid=(1, 1, 1, 1), compile=True)
    x = torch.randn(8, 6).T.requires_grad_()
    with config.patch({"cpp.vec_isa_ok": True, "compile_threads": 1}):
        ours = pm(x)
    theirs = model(y := x.detach().clone().requires_grad_())
    for output in (ours, theirs):
        output["loss"].backward()
    torch.testing.assert_close(ours["loss"], theirs["loss"])
    torch.testing.assert_close(x.grad, y.grad)
    for mine, original in zip(pm.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, original.grad)
    code = pm._latest.forward.__self__.code
    assert "restrided" in code
    assert "gelu" not in code
    assert pickle.loads(pickle.dumps(pm))._engine.inductor.device == CPU
