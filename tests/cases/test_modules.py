"""The parallel module as the model: its methods, its containers, its copies, and its printed form."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import axograph
from tests.cases.same import DATA2, X2, XY, Y2, Z2, Grid, assert_same, assert_tells_apart, made, numbers


class Generator(nn.Module):
    """A model with a configuration, and a method that calls it on longer and longer inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"end": 0}
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens).cumsum(1))

    @torch.no_grad()
    def generate(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            tokens = torch.cat([tokens, self(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
        return tokens


@pytest.mark.parametrize("grid", [X2, Y2, Z2], ids=str)
def test_methods_and_attributes_of_the_model(grid: Grid) -> None:
    """After tracing there is no generate(), no configuration, and a copy shares its graph with the original.

    After https://github.com/pytorch/PiPPy/issues/715.
    """
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    model = made(Generator)
    module = axograph.parallelize(made(Generator), grid=grid)
    assert module.config["end"] == 0
    assert torch.equal(module.generate(tokens, 5), model.generate(tokens, 5))

    other = copy.deepcopy(module)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    torch.testing.assert_close(module(tokens), model(tokens))
    assert not other(tokens).any()
    assert isinstance(module, nn.Module)
    assert "Embedding(11, 8)" in repr(module)


class Containers(nn.Module):
    """Walks over slices of lists, nested containers, and lists of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.nested = nn.ModuleDict({"pair": nn.ModuleList([nn.Linear(8, 8), nn.Identity()]), "none": nn.Sequential()})
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(2))
        self.named = nn.ParameterDict({"out": nn.Parameter(torch.randn(8, 8))})
        self.skipped = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers[: len(self.layers) - self.skipped], 1):
            x = x + torch.tanh(layer(x)) * number
        for layer in self.nested["pair"][::-1]:
            x = layer(x)
        for scale, shift in zip(self.scales, (1.0, 2.0), strict=True):
            x = x * scale + shift
        return self.nested["none"](x @ self.named["out"])


def test_slices_and_nested_containers() -> None:
    """A model that is rebuilt from a graph lacks the containers that its forward walks over.

    The layer that is not used has its names and no gradient. After
    https://github.com/pytorch/pytorch/issues/141939.
    """
    x = numbers(4, 8)
    for module in assert_same(Containers, (x,), grids=[X2, Y2, Z2, XY, DATA2], steps=2):
        assert module.layers[3].weight.grad is None
    all_layers = made(Containers)
    right = all_layers(x)
    all_layers.skipped = 0
    assert_tells_apart(right, all_layers(x))


def test_a_sequential_stays_one() -> None:
    """Special methods, which Python looks up on the type, are gone with the others: length, indices, iteration.

    After https://github.com/pytorch/PiPPy/issues/715.
    """
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    layers = list(model)
    module = axograph.parallelize(model, grid=X2)
    assert len(module) == 3
    assert module[0] is layers[0]
    assert list(module) == layers
    assert list(module[1:]) == layers[1:]
    assert len(copy.deepcopy(module)) == 3
    assert list(module.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(TypeError, match="has no len"):
        len(axograph.parallelize(nn.Linear(8, 8), grid=X2))


def test_a_layer_put_in_later_is_run() -> None:
    """A program made for the old layer goes on answering, as graphs do that are recorded once.

    After https://github.com/pytorch/pytorch/issues/137013.
    """
    x = numbers(2, 8)
    module = axograph.parallelize(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), grid=X2)
    hidden = module[0](x)
    torch.testing.assert_close(module(x), torch.tanh(hidden))
    for other in (nn.Sigmoid(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)):
        module[1] = other
        torch.testing.assert_close(module(x), other(hidden))


def test_an_attribute_set_later_is_that_of_the_model() -> None:
    """A flag is a constant of the graph, so setting it afterwards changes nothing.

    After https://github.com/pytorch/pytorch/issues/68190.
    """
    x = numbers(4, 8)
    model = made(Containers)
    module = axograph.parallelize(made(Containers), grid=X2)
    for skipped in (1, 0, 2):
        model.skipped = module.skipped = skipped
        torch.testing.assert_close(module(x), model(x))
