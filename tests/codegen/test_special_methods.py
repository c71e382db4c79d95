"""Special methods of the model's type work on the parallel module, and no others do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import axograph
from axograph.codegen.module import ParallelModule

ONE = (1, 1, 1, 1)


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh())


def test_a_container_is_indexed_counted_and_walked_over() -> None:
    model = sequential()
    layers = list(model)
    module = axograph.parallelize(model, ONE)
    assert isinstance(module, ParallelModule)
    assert (len(module), module[1], list(module), list(module[1:])) == (2, layers[1], layers, layers[1:])
    table = axograph.parallelize(nn.ModuleDict({"a": nn.Linear(2, 2)}), ONE)
    assert "a" in table
    assert "b" not in table


def test_a_model_without_them_gets_none() -> None:
    module = axograph.parallelize(nn.Linear(2, 2), ONE)
    assert type(module) is ParallelModule
    assert module
    with pytest.raises(TypeError, match="has no len"):
        len(module)


def test_an_operator_in_place_leaves_the_parallel_module_in_place() -> None:
    module = before = axograph.parallelize(sequential(), ONE)
    module += nn.Sequential(nn.Linear(2, 3))
    assert module is before
    assert module(torch.ones(1, 2)).shape == (1, 3)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_have_them_too(how: Callable[[ParallelModule], ParallelModule]) -> None:
    module = axograph.parallelize(sequential(), ONE)
    other = how(module)
    assert len(other) == 2
    assert other[0] is not module[0]
    torch.testing.assert_close(other(torch.ones(1, 2)), module(torch.ones(1, 2)))
