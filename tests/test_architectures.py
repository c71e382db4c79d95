"""Hugging Face architectures equal the unmodified model: outputs, loss, every gradient, three steps of AdamW."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.integrations import moe

import axograph
from axograph.codegen import compiler
from tests.architectures import ARCHITECTURES, Architecture, tokens
from tests.test_equality import assert_equal_training
from tests.zoo import double_everywhere

if importlib.util.find_spec("tests.architectures_other"):
    from tests.architectures_other import ARCHITECTURES as OTHERS
else:
    OTHERS = ()

SINGLE = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]


@pytest.fixture(autouse=True)
def _one_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured program of an architecture does not depend on the grid: it is made once for all of them."""
    capture: Callable[..., Any] = compiler.capture
    made: list[Any] = []

    def once(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(capture(*args, **kwargs))
        return made[0]

    monkeypatch.setattr(compiler, "capture", once)


@pytest.fixture(autouse=True)
def _experts_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's grouped product takes no float64: experts then go through transformers' own operator, which does."""
    monkeypatch.setattr(moe, "_can_use_grouped_mm", lambda *_: False)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *OTHERS], ids=str)
def test_an_architecture_equals_the_unmodified_one(architecture: Architecture) -> None:
    for grid in [*(SINGLE if architecture.single_axes else []), *architecture.grids]:
        with double_everywhere():
            model, inputs = architecture.model(), architecture.inputs()
            original = copy.deepcopy(model)
            module = axograph.parallelize(model, grid=grid)
            assert_equal_training(module, original, inputs, torch.optim.AdamW, lr=1e-2, eps=1e-4)


def test_experts_in_a_loop_over_those_chosen_are_refused_with_their_line() -> None:
    """The default implementation of transformers is grouped; "eager" branches on the contents of a tensor."""
    model = next(a for a in ARCHITECTURES if a.name == "mixtral").model()
    model.config._experts_implementation = "eager"
    with pytest.raises(axograph.CaptureError, match=r"(?s)given .*for expert_idx in expert_hit.*rule .*try "):
        axograph.parallelize(model, (2, 1, 1, 1), sample_inputs=tokens())
