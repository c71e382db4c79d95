"""The program: its table of inputs and outputs beside the graph, and the facts on nodes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import fx, nn

from axograph.capture.program import DTYPE_NAMES, FACTS, Facts, facts, note, value, values
from axograph.capture.trace import capture
from axograph.placement import DTYPES, Placement
from tests.zoo import MLP


def test_placeholders_and_results_are_in_the_order_of_the_table() -> None:
    program = capture(MLP(), (torch.zeros(2, 3, 32),))
    shapes = {
        (declared.kind, declared.target): tuple(value(node).shape)
        for node, declared in zip(program.placeholders(), program.inputs, strict=True)
    }
    assert shapes["parameter", "up.weight"] == (64, 32)
    assert shapes["buffer", "calls"] == ()
    assert shapes["user", 0] == shapes["tangent", 0] == (2, 3, 32)
    results = {
        (declared.kind, declared.target): tuple(value(node).shape)
        for node, declared in zip(program.results(), program.outputs, strict=True)
        if node is not None
    }
    assert results["user", 0] == (2, 3, 32)
    assert results["gradient", "down.weight"] == (32, 64)
    assert results["buffer", "average"] == (32,)


def test_the_captured_graph_computes_outputs_gradients_and_buffers() -> None:
    model, x, tangent = MLP(), torch.randn(2, 3, 32), torch.randn(2, 3, 32)
    program = capture(model, (x,))
    given = {"parameter": model.get_parameter, "buffer": model.get_buffer}
    found = {"user": x, "tangent": tangent}
    arguments = [
        given[i.kind](str(i.target)).detach().clone() if i.kind in given else found[i.kind] for i in program.inputs
    ]
    results = dict(zip([(o.kind, o.target) for o in program.outputs], program.graph_module(*arguments), strict=True))
    right = model(x)
    right.backward(tangent)
    torch.testing.assert_close(results["user", 0], right)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(results["gradient", name], parameter.grad)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(results["buffer", name], buffer)


def test_facts_are_noted_one_by_one() -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    assert facts(node) == Facts()
    note(node, path="layers.0")
    note(node, source="model.py:1, y = x")
    assert facts(node) == Facts(path="layers.0", source="model.py:1, y = x")
    assert list(node.meta) == [FACTS]
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts(node).path = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        note(node, colour="red")


def test_the_tensors_of_a_node() -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    assert values(node) == ()
    one, other = torch.zeros(1), torch.zeros(2)
    node.meta["val"] = (one, None, other)
    assert [tensor.shape[0] for tensor in values(node)] == [1, 2]
    with pytest.raises(ValueError, match="too many"):
        value(node)
    node.meta["val"] = one
    assert value(node) is one


def test_every_short_name_of_an_element_type_can_be_parsed() -> None:
    assert set(DTYPE_NAMES.values()) == set(DTYPES)
    assert all(Placement.parse(f"{name}[2]").dtype == name for name in DTYPE_NAMES.values())


def test_a_program_of_a_model_without_parameters_has_only_user_inputs() -> None:
    program = capture(nn.ReLU(), (torch.zeros(2),))
    assert [declared.kind for declared in program.inputs] == ["user"]
    assert [declared.kind for declared in program.outputs] == ["user"]
