"""Rebuilding a graph: values and facts on what is emitted, names of forward nodes, unused nodes dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from axograph.capture.listing import listing
from axograph.capture.program import Program, facts, note, value
from axograph.capture.trace import capture
from axograph.cost_model.protocol import Collective
from axograph.passes.rewrite import Emitter, rebuild

aten = torch.ops.aten


def copied(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    return emit.copy(node, args, kwargs)


def captured() -> Program:
    return capture(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (torch.zeros(2, 4),))


def test_a_rebuilt_program_is_the_same_text_on_a_new_graph() -> None:
    before = captured()
    text = listing(before)
    after = rebuild(before, copied, "Copied")
    assert listing(after) == text == listing(before)
    assert after.graph is not before.graph
    assert type(after.graph_module).__name__ == "Copied"


def test_a_copied_node_keeps_what_passes_found_out_and_one_made_in_its_place_does_not() -> None:
    def visit(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        same = emit.copy(node, args, kwargs)
        return emit.call(aten.neg.default, same) if node.target is aten.relu.default else same

    before = captured()
    moved = Collective(kind="all_reduce", axes=("x",), size_bytes=24.0)
    for node in before.graph.nodes:
        note(node, collective=moved, reason="a sum", placements=(None,), chunk=1, exposed="late")
    after = rebuild(before, visit, "Changed")
    made = {node.target: facts(node) for node in after.graph.nodes}
    kept = made[aten.relu.default]
    assert (kept.collective, kept.reason, kept.placements) == (moved, "a sum", (None,))
    assert (kept.chunk, kept.exposed) == (1, "late")
    other = made[aten.neg.default]
    assert (other.path, other.collective, other.reason, other.placements, other.exposed) == ("1", None, "", (), None)


def test_what_a_visit_emits_stands_in_for_the_node() -> None:
    def visit(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        if node.target is aten.relu.default:
            return emit.call(aten.clamp_min.default, emit.call(aten.mul.Scalar, args[0], 2.0), 0)
        return emit.copy(node, args, kwargs)

    after = rebuild(captured(), visit, "Changed")
    lines = [line for line in listing(after).splitlines() if "clamp" in line or "mul" in line]
    assert lines[:2] == [
        "mul: f32[2, 3] = aten.mul.Scalar(addmm, 2.0)",
        "clamp_min: f32[2, 3] = aten.clamp_min(mul, 0)",
    ]
    made = next(node for node in after.graph.nodes if node.target is aten.clamp_min.default)
    assert (facts(made).path, facts(made).phase) == ("1", "forward")
    assert value(made).shape == (2, 3)


def test_backward_nodes_follow_the_new_names_of_their_forward_nodes() -> None:
    def visit(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        if node.target is aten.addmm.default:
            return emit.call(aten.add.Tensor, emit.call(aten.mm.default, *args[1:]), args[0])
        return emit.copy(node, args, kwargs)

    after = rebuild(captured(), visit, "Changed")
    forward = {facts(node).forward for node in after.graph.nodes if node.target is aten.mm.default}
    assert forward == {None, "add"}


def test_unused_operators_are_dropped() -> None:
    def visit(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node | None:
        if node.target is aten.detach.default:
            return args[0]  # type: ignore[no-any-return]
        emit.call(aten.exp.default, next(iter(emit.graph.nodes)))
        return emit.copy(node, args, kwargs)

    after = rebuild(captured(), visit, "Changed")
    assert "aten.exp" not in listing(after)
    assert "aten.detach" not in listing(after)


def test_dropping_a_node_that_is_used_is_refused() -> None:
    with pytest.raises(KeyError):
        rebuild(captured(), lambda emit, node, args, kwargs: None, "Dropped")


def test_an_operator_on_shapes_that_do_not_fit_is_refused_where_it_is_emitted() -> None:
    emit = Emitter()
    with torch.device("meta"):
        x = emit.placeholder("x", torch.empty(2, 3), facts(fx.Graph().placeholder("x")))
    with pytest.raises((RuntimeError, ValueError), match="dim"):
        emit.call(aten.mm.default, x, x)


def test_numbers_stay_the_same() -> None:
    before = captured()
    after = rebuild(before, copied, "Copied")
    given = [torch.randn(value(node).shape) for node in before.placeholders()]
    for ours, theirs in zip(after.graph_module(*given), before.graph_module(*given), strict=True):
        assert torch.equal(ours, theirs)
