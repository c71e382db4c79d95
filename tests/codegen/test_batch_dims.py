"""The batch: which dim of which input carries it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from axograph.capture.structure import Structure
from axograph.codegen.batch_dims import batch_dims
from axograph.errors import InputError


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, rest: Any = None) -> torch.Tensor:
        return x


class Open(nn.Module):
    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return x


X, SAME, OTHER, SCALAR = torch.zeros(4, 6), torch.zeros(4), torch.zeros(6, 4), torch.tensor(1.0)


def found(stated: dict[str, int | None], *args: Any, model: nn.Module | None = None, **kwargs: Any) -> list[int | None]:
    tensors, structure = Structure.flatten((args, kwargs))
    dims = batch_dims(stated, model or Model(), tensors, structure)
    assert list(dims) == list(range(len(tensors)))
    return list(dims.values())


def test_without_a_statement_the_batch_is_dim_0_of_the_first_input_and_of_all_of_its_size() -> None:
    assert found({}, X, SAME, rest=[OTHER, SCALAR]) == [0, 0, None, None]
    assert found({}, SCALAR, OTHER, rest=X) == [None, 0, None]
    assert found({}) == []


@pytest.mark.parametrize("name", ["mask", "1"])
def test_an_input_is_named_by_its_parameter_or_position(name: str) -> None:
    assert found({name: None}, X, SAME) == [0, None]
    assert found({name: 1}, X, OTHER) == [0, 1]
    assert found({name: -1}, X, OTHER) == [0, 1]


def test_a_keyword_and_a_nested_input_are_named_likewise() -> None:
    assert found({"mask": None}, X, mask=SAME) == [0, None]
    assert found({"rest.y": 1}, X, None, {"y": OTHER}) == [0, 1]
    assert found({"rest.y": 1}, X, rest={"y": OTHER}) == [0, 1]


def test_the_stated_size_is_looked_for_in_the_others() -> None:
    assert found({"x": 1}, X, SAME, OTHER) == [1, None, 0]


def test_an_optional_input_that_is_left_out_is_passed_over() -> None:
    assert found({"mask": None}, X) == [0]
    assert found({"labels": None}, X, model=Open()) == [0]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="an input that there is not: 'masc'") as refusal:
        found({"masc": None}, X, SAME)
    assert refusal.value.given == "the inputs x, mask"
    with pytest.raises(InputError, match="a dim that 'mask' has not") as refusal:
        found({"mask": 1}, X, SAME)
    assert refusal.value.given == "mask: f32[4]"
