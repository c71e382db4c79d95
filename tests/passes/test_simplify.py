"""`simplify`, before and after: equal nodes are one, so are views of views, and a product and its bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from axograph.capture.listing import listing
from axograph.capture.program import Program, facts
from axograph.capture.trace import capture
from axograph.passes.normalize import Normalize
from axograph.passes.simplify import Simplify


class Model(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.run(*tensors)


def normalized(run: Callable[..., Any], *tensors: torch.Tensor) -> Program:
    return Normalize().run(capture(Model(run), tensors))


def text(program: Program) -> list[str]:
    """The operators and results of a program, without its inputs and source lines."""
    return [line for line in listing(program).splitlines() if not line.startswith("#") and "= input" not in line]


X, W, B = torch.randn(2, 4), torch.randn(4, 3), torch.randn(3)


def test_equal_operators_become_one() -> None:
    program = normalized(lambda x, w: (torch.mm(x, w), torch.mm(x, w).exp(), torch.mm(x, w + 0)), X, W)
    assert text(program) == [
        "mm: f32[2, 3] = aten.mm(user_0, user_1)",
        "mm_1: f32[2, 3] = aten.mm(user_0, user_1)",
        "exp: f32[2, 3] = aten.exp(mm_1)",
        "add: f32[4, 3] = aten.add.Tensor(user_1, 0)",
        "mm_2: f32[2, 3] = aten.mm(user_0, add)",
        "return mm -> user 0",
        "return exp -> user 1",
        "return mm_2 -> user 2",
    ]
    assert text(Simplify().run(program)) == [
        "mm: f32[2, 3] = aten.mm(user_0, user_1)",
        "exp: f32[2, 3] = aten.exp(mm)",
        "add: f32[4, 3] = aten.add.Tensor(user_1, 0)",
        "mm_2: f32[2, 3] = aten.mm(user_0, add)",
        "return mm -> user 0",
        "return exp -> user 1",
        "return mm_2 -> user 2",
    ]


def test_a_chain_of_views_becomes_one_view_or_none() -> None:
    def run(x: torch.Tensor) -> Any:
        turned = x.reshape(2, 2, 2).permute(2, 0, 1)
        return x.reshape(8).reshape(4, 2), turned.permute(1, 0, 2), turned.permute(1, 2, 0), x.reshape(8).reshape(2, 4)

    assert text(Simplify().run(normalized(run, X))) == [
        "reshape: f32[2, 2, 2] = aten.reshape(user_0, [2, 2, 2])",
        "reshape_2: f32[4, 2] = aten.reshape(user_0, [4, 2])",
        "permute_1: f32[2, 2, 2] = aten.permute(reshape, [0, 2, 1])",
        "return reshape_2 -> user 0",
        "return permute_1 -> user 1",
        "return reshape -> user 2",
        "return user_0 -> user 3",
    ]


def test_a_product_and_its_bias_become_one_operator() -> None:
    program = normalized(lambda x, w, b: torch.addmm(b, x, w).relu(), X, W, B)
    assert text(program)[:2] == [
        "mm: f32[2, 3] = aten.mm(user_0, user_1)",
        "add: f32[2, 3] = aten.add.Tensor(mm, user_2)",
    ]
    assert text(Simplify().run(program)) == [
        "addmm: f32[2, 3] = aten.addmm(user_2, user_0, user_1)",
        "relu: f32[2, 3] = aten.relu(addmm)",
        "return relu -> user 0",
    ]


@pytest.mark.parametrize(
    ("run", "tensors"),
    [
        (lambda x, w, b: (lambda y: (y, y + b))(x @ w), (X, W, B)),
        (lambda x, w, b: x @ w + b, (X, W, torch.randn(2, 3))),
        (lambda x, w, b: x @ w + b, (X, W, torch.randn(1))),
        (lambda x, w, b: torch.add(x @ w, b, alpha=2), (X, W, B)),
        (lambda x, w, b: x @ w + b, (X, W, B.double())),
    ],
    ids=["the product is used", "no row", "a scalar", "a factor", "another type"],
)
def test_a_product_that_is_not_just_a_product_with_a_bias_stays(run: Any, tensors: tuple[torch.Tensor, ...]) -> None:
    after = text(Simplify().run(normalized(run, *tensors)))
    assert sum("aten.mm(" in line for line in after) == 1
    assert not any("addmm" in line for line in after)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: (x + 1, x + 1.0, x + True),
        lambda x: (x.to(torch.float64), x.to(torch.float16)),
        lambda x: (torch.zeros(2, dtype=torch.int64), torch.zeros(2), x.exp()),
        lambda x: (x.sum(0), x.sum(1)),
    ],
    ids=["numbers", "casts", "types", "dims"],
)
def test_operators_that_differ_in_an_argument_or_type_stay_apart(run: Callable[..., Any]) -> None:
    program = normalized(run, X)
    after = Simplify().run(program)
    assert len(text(after)) == len(text(program))
    assert len({result.name for result in after.results() if result is not None}) == len(after.outputs)


def test_facts_stay_with_the_node_that_stays() -> None:
    layer = nn.Linear(4, 3)
    program = Simplify().run(Normalize().run(capture(layer, (X,))))
    kept = {str(node.target): facts(node) for node in program.graph.nodes if node.op == "call_function"}
    assert kept["aten.addmm.default"].phase == "forward"
    names = {node.name for node in program.graph.nodes}
    assert {about.forward for about in kept.values() if about.phase == "backward"} <= names | {None}
    assert any(about.forward for about in kept.values())


def test_numbers_stay_the_same() -> None:
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = torch.addmm(b, x, w)
        return y.reshape(6).reshape(3, 2).t().t(), torch.addmm(b, x, w) * 2, y.sum()

    program = normalized(run, X, W, B)
    before, after = (p.graph_module(X, W, B) for p in (program, Simplify().run(program)))
    for ours, theirs, right in zip(after, before, run(X, W, B), strict=True):
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours, right)
