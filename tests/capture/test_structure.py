"""Structures: tensors out of nested values and back, keys that tell calls apart, and names of places."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from axograph.capture.structure import Structure

Pair = collections.namedtuple("Pair", ["left", "right"])

leaves = st.one_of(st.just("tensor"), st.none(), st.integers(), st.text(max_size=3), st.booleans())
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def filled(value: Any, numbers: Any) -> Any:
    """The value with a numbered tensor for each "tensor"."""
    if value == "tensor":
        return torch.tensor(next(numbers))
    if isinstance(value, Pair):
        return Pair(*(filled(item, numbers) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(filled(item, numbers) for item in value)
    if isinstance(value, dict):
        return {key: filled(item, numbers) for key, item in value.items()}
    return value


@given(nested)
def test_flattened_values_are_put_together_again(shape: Any) -> None:
    value = filled(shape, iter(range(100)))
    tensors, structure = Structure.flatten(value)
    assert [tensor.item() for tensor in tensors] == list(range(len(tensors)))
    assert structure.count == len(tensors) == len(structure.paths())
    assert repr(structure.unflatten(tensors)) == repr(value)
    assert structure.key == Structure.flatten(filled(shape, iter(range(50, 150))))[1].key


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    weight: float
    rest: dict[str, Any]


def test_an_object_is_copied_around_its_tensors() -> None:
    batch = Batch(torch.tensor(1), 0.5, {"y": [torch.tensor(2)], "name": "first"})
    tensors, structure = Structure.flatten({"batch": batch})
    assert [tensor.item() for tensor in tensors] == [1, 2]
    assert structure.paths() == ["batch.x", "batch.rest.y.0"]
    rebuilt = structure.unflatten([torch.tensor(3), torch.tensor(4)])["batch"]
    assert rebuilt == Batch(torch.tensor(3), 0.5, {"y": [torch.tensor(4)], "name": "first"})
    assert batch.x.item() == 1, "the original is left as it was"


def test_an_object_that_holds_itself_ends() -> None:
    class Node:
        def __init__(self) -> None:
            self.value = torch.tensor(1)
            self.me = self

    tensors, structure = Structure.flatten(Node())
    assert len(tensors) == 1
    assert structure.unflatten([torch.tensor(2)]).value.item() == 2


def test_a_tensor_that_occurs_twice_has_two_places() -> None:
    tensor = torch.tensor(1)
    tensors, structure = Structure.flatten((tensor, [tensor]))
    assert len(tensors) == 2
    assert structure.paths() == ["0", "1.0"]


class Options:
    """Holds no tensor, and prints as nothing but its address."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, True),
        (1.0, 1),
        ("a", "b"),
        (None, torch.zeros(1)),
        (torch.float32, torch.float64),
        ([torch.zeros(1)], (torch.zeros(1),)),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}),
        (Options(1.0), Options(2.0)),
        (np.zeros(5000), np.concatenate([np.zeros(2500), np.ones(1), np.zeros(2499)])),
        (Batch(torch.zeros(1), 1.0, {}), Batch(torch.zeros(1), 2.0, {})),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_that_differ_in_more_than_tensors_have_different_keys(one: Any, other: Any) -> None:
    assert Structure.flatten(one)[1].key != Structure.flatten(other)[1].key


@pytest.mark.parametrize("make", [lambda: Options(1.0), lambda: np.zeros(5000), lambda: {"a": [1, Options(2.0)]}])
def test_equal_values_have_equal_keys(make: Any) -> None:
    assert Structure.flatten(make())[1].key == Structure.flatten(make())[1].key


def test_an_object_that_changes_changes_its_key() -> None:
    options = Options(1.0)
    before = Structure.flatten(options)[1].key
    options.scale = 2.0
    assert Structure.flatten(options)[1].key != before


def test_an_object_that_cannot_be_read_is_equal_to_itself_alone() -> None:
    class Local:
        pass

    one, other = Local(), Local()
    assert Structure.flatten(one)[1].key == Structure.flatten(one)[1].key
    assert Structure.flatten(one)[1].key != Structure.flatten(other)[1].key
