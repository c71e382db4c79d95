import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from axograph.capture.listing import listing
from axograph.capture.program import Program, note
from axograph.errors import UnsupportedError
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.rules import rule_of
from tests.passes.sharding.rules.one_operator import Call, booleans, floats, integers, positive, sample

aten = torch.ops.aten


def _calls(program: Program) -> list[str]:
    """The calls of a program, in order."""
    lines = [line.partition(" = ")[2] for line in listing(program).splitlines()]
    return [call for call in lines if call and not call.startswith("input ")]


@pytest.mark.parametrize(
    ("op", "args", "after"),
    [
        (aten.view.default, (floats(4, 8), [2, 16]), ["aten.reshape(input_0, [2, 16])"]),
        (aten.unsqueeze.default, (floats(4), 0), ["aten.reshape(input_0, [1, 4])"]),
        (aten.squeeze.dim, (floats(4, 1), 1), ["aten.reshape(input_0, [4])"]),
        (aten.t.default, (floats(4, 8),), ["aten.permute(input_0, [1, 0])"]),
        (aten.transpose.int, (floats(2, 3, 4), 0, -1), ["aten.permute(input_0, [2, 1, 0])"]),
        (aten.expand.default, (floats(1, 4), [3, -1]), ["aten.expand(input_0, [3, 4])"]),
        (aten.slice.Tensor, (floats(4, 8), -1, -3), ["aten.slice.Tensor(input_0, 1, 5, 8, 1)"]),
        (
            aten.slice_backward.default,
            (floats(4, 3), [4, 8], -1, -3, 2**63 - 1, 1),
            ["aten.slice_backward(input_0, [4, 8], 1, 5, 8, 1)"],
        ),
        (
            aten.slice_scatter.default,
            (floats(4, 8), floats(4, 3), 1, -3),
            ["aten.slice_scatter(input_0, input_1, 1, 5, 8, 1)"],
        ),
        (
            aten.split.Tensor,
            (floats(4, 5), 2, 1),
            [f"aten.slice.Tensor(input_0, 1, {bounds}, 1)" for bounds in ("0, 2", "2, 4", "4, 5")],
        ),
        (aten.unbind.int, (floats(2, 4),), ["aten.select.int(input_0, 0, 0)", "aten.select.int(input_0, 0, 1)"]),
        (
            aten.stack.default,
            ([floats(4), floats(4)], -1),
            [
                "aten.reshape(input_0, [4, 1])",
                "aten.reshape(input_1, [4, 1])",
                "aten.cat([reshape, reshape_1], 1)",
            ],
        ),
        (
            aten.repeat.default,
            (floats(4, 1), [2, 1, 3]),
            [
                "aten.reshape(input_0, [1, 1, 1, 4, 1, 1])",
                "aten.expand(reshape, [2, 1, 1, 4, 3, 1])",
                "aten.reshape(expand, [2, 4, 3])",
            ],
        ),
        (
            aten.addmm.default,
            (floats(8), floats(4, 3), floats(3, 8)),
            ["aten.mm(input_1, input_2)", "aten.add.Tensor(mm, input_0)"],
        ),
        (
            aten.baddbmm.default,
            (floats(1), floats(2, 4, 3), floats(2, 3, 8)),
            ["aten.bmm(input_1, input_2)", "aten.add.Tensor(bmm, input_0)"],
        ),
        (aten.sum.default, (floats(4, 8),), ["aten.sum.dim_IntList(input_0, [0, 1], False)"]),
        (aten.mean.default, (floats(4, 8),), ["aten.mean.dim(input_0, [0, 1], False)"]),
        (aten.max.default, (floats(4, 8),), ["aten.amax(input_0, [0, 1], False)"]),
        (aten.min.default, (floats(4, 8),), ["aten.amin(input_0, [0, 1], False)"]),
        (aten.copy.default, (floats(4, 8), floats(8)), ["aten.expand(input_1, [4, 8])"]),
        (aten.copy.default, (floats(8), integers(9, 8)), ["aten._to_copy(input_1, dtype=torch.float64)"]),
        (aten.fill.Tensor, (floats(8), floats()), ["aten.expand(input_1, [8])"]),
        (aten.fill.Scalar, (floats(8), 2), ["aten.full([8], 2, dtype=torch.float64, device=cpu)"]),
        (aten.new_zeros.default, (floats(8), [4]), ["aten.full([4], 0, dtype=torch.float64, device=cpu)"]),
        (aten.ones_like.default, (integers(9, 8),), ["aten.full([8], 1, dtype=torch.int64, device=cpu)"]),
        (aten.full_like.default, (floats(8), 7), ["aten.full([8], 7, dtype=torch.float64, device=cpu)"]),
        (
            aten.index_put.default,
            (floats(4, 8), [booleans(4)], floats(1)),
            [
                "aten.reshape(input_1, [4, 1])",
                "aten.reshape(input_2, [])",
                "aten.where.self(reshape, reshape_1, input_0)",
            ],
        ),
        (
            aten.index_put.default,
            (floats(4, 8), [integers(4, 2)], floats(2, 8), True),
            ["aten.index_put(input_0, [input_1], input_2, True)"],
        ),
        *(
            (op, (floats(4, 8),), [])
            for op in (aten.detach.default, aten.clone.default, aten.alias.default, aten.contiguous.default)
        ),
        (aten.reshape.default, (floats(4, 8), [4, 8]), []),
        (aten.slice.Tensor, (floats(4, 8), 1, 0, 2**63 - 1), []),
    ],
    ids=str,
)
def test_an_operator_becomes_the_forms_that_have_rules(op: Any, args: tuple[Any, ...], after: list[str]) -> None:
    call = Call(sample("", op, *args))
    normal = Normalize().run(call.program)
    assert _calls(normal) == after
    assert all(rule_of(node).known for node in normal.graph.nodes if node.op == "call_function")
    found = normal.graph_module(*call.tensors)
    torch.testing.assert_close(list(found), call.expected(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("op", [aten.empty_like.default, aten.new_empty_strided.default, aten.new_empty.default])
def test_what_is_not_initialised_is_zero(op: Any) -> None:
    size = [4] if op is not aten.empty_like.default else None
    args = (floats(4), size, [1]) if op is aten.new_empty_strided.default else (floats(4), size)
    call = Call(sample("", op, *(argument for argument in args if argument is not None)))
    assert _calls(Normalize().run(call.program)) == ["aten.full([4], 0, dtype=torch.float64, device=cpu)"]


def test_a_cast_that_changes_nothing_goes() -> None:
    call = Call(sample("", aten._to_copy.default, floats(4), dtype=torch.float64))
    assert _calls(Normalize().run(call.program)) == []
    call = Call(sample("", aten._to_copy.default, floats(4), dtype=torch.float32))
    assert _calls(Normalize().run(call.program)) == ["aten._to_copy(input_0, dtype=torch.float32)"]


def test_a_mask_of_attention_gets_a_batch_and_heads() -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    call = Call(sample("", op, *[floats(2, 2, 4, 4)] * 3, attn_mask=floats(4, 4)))
    normal = Normalize().run(call.program)
    assert _calls(normal)[0] == "aten.reshape(input_3, [1, 1, 4, 4])"
    for found, expected in zip(normal.graph_module(*call.tensors), call.expected(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_scale_and_bias_of_a_biased_product_are_applied() -> None:
    call = Call(sample("", aten.addmm.default, floats(8), floats(4, 3), floats(3, 8), beta=2, alpha=math.pi))
    normal = Normalize().run(call.program)
    torch.testing.assert_close(list(normal.graph_module(*call.tensors)), call.expected(), rtol=0, atol=1e-14)


def test_random_choices_are_refused_with_the_line_of_the_model_and_what_to_write_instead() -> None:
    call = Call(sample("", aten.multinomial.default, positive(4, 8), 2))
    note(call.node, path="layers.0.router", source="model.py:12, x = p.multinomial(2)")
    with pytest.raises(
        UnsupportedError, match=r"(?s)multinomial.*layers\.0\.router.*model\.py:12.*exponential_\(\)\)\.topk"
    ):
        Normalize().run(call.program)


def test_attention_is_refused_only_where_it_drops() -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    query = floats(2, 2, 4, 4)
    Normalize().run(Call(sample("", op, query, query, query)).program)
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        Normalize().run(_with_dropout(Call(sample("", op, query, query, query))))


def _with_dropout(call: Call) -> Program:
    call.node.args = (*call.node.args, 0.1)
    return replace(call.program)
