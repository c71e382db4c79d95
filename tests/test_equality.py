"""The distributed module equals the unmodified one: outputs, loss, gradients, buffers, and training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import axograph
from axograph.codegen import compiler
from axograph.torch_private import tree_flatten
from tests.zoo import BY_NAME, CASES, Case, double_everywhere, loss_of

GRIDS = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (2, 2, 1, 1), (2, 1, 2, 1), (1, 2, 2, 1), (2, 2, 2, 2)]
STEPS = 3


def largest_difference(ours: Any, theirs: Any) -> float:
    """The largest difference between two equally structured outputs."""
    a, structure = tree_flatten(ours)
    b, other = tree_flatten(theirs)
    assert structure == other
    return max((_difference(x, y) for x, y in zip(a, b, strict=True) if isinstance(y, torch.Tensor)), default=0.0)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    return (ours - theirs).detach().abs().max().item() if ours.numel() else 0.0


def assert_equal_training(
    ours: nn.Module, theirs: nn.Module, inputs: dict[str, Any], optimizer: type[torch.optim.Optimizer], **options: Any
) -> None:
    """Train both side by side, comparing everything that there is to see, to 1e-9."""
    for module in (ours, theirs):
        module.zero_grad()
    steppers = [optimizer(module.parameters(), **options) for module in (ours, theirs)]
    for _ in range(STEPS):
        outputs = [module(**inputs) for module in (ours, theirs)]
        assert largest_difference(*outputs) < 1e-9
        losses = [loss_of(output) for output in outputs]
        for loss, stepper in zip(losses, steppers, strict=True):
            stepper.zero_grad()
            loss.backward()
        assert_equal_gradients(ours, theirs)
        for stepper in steppers:
            stepper.step()
        for table in ("named_parameters", "named_buffers"):
            a, b = (dict(getattr(module, table)()) for module in (ours, theirs))
            assert a.keys() == b.keys()
            assert all(_difference(a[name], b[name]) < 1e-9 for name in b)


def assert_equal_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    found = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        assert (found[name].grad is None) == (parameter.grad is None), name
        if parameter.grad is not None:
            assert _difference(found[name].grad, parameter.grad) < 1e-9, name


def train_both(case: Case, grid: tuple[int, int, int, int], inputs: dict[str, torch.Tensor]) -> None:
    model = case.model().double()
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    original = copy.deepcopy(model)
    start = copy.deepcopy(model.state_dict())
    module = axograph.parallelize(model, grid=grid)
    assert_equal_training(module, original, inputs, torch.optim.SGD, lr=0.1)
    module.load_state_dict(start)
    original.load_state_dict(start)
    assert_equal_training(module, original, inputs, torch.optim.AdamW, lr=1e-2, eps=1e-4)
    assert set(module.plan.grid.cut_axes) == {a for a in ("x", "y", "z", "data") if module.plan.grid[a] > 1}


@pytest.fixture(scope="module")
def captured() -> dict[Any, Any]:
    """Captured programs: they do not depend on the grid, and tests of one model share them."""
    return {}


@pytest.fixture(autouse=True)
def capture_once(captured: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    capture = compiler.capture

    def once(model: nn.Module, args: Any, kwargs: Any, **options: Any) -> Any:
        shapes = tuple((name, tensor.shape) for name, tensor in kwargs.items())
        key = (type(model), shapes, tuple(sorted(options.items(), key=str)))
        if key not in captured:
            captured[key] = capture(model, args, kwargs, **options)
        return captured[key]

    monkeypatch.setattr(compiler, "capture", once)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_training_equals_the_unmodified_model(case: Case, grid: tuple[int, int, int, int]) -> None:
    with double_everywhere():
        train_both(case, grid, case.inputs())


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_a_thousand_ranks_equal_the_unmodified_model(name: str) -> None:
    with double_everywhere():
        train_both(BY_NAME[name], (2, 4, 8, 16), BY_NAME[name].inputs(batch=128))
