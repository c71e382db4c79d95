"""One weight in several places: one parameter, one gradient, which is the sum of all uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import axograph
from tests.cases.same import DATA2, X2, XY, XZ, Y2, Z2, assert_same, assert_tells_apart, ids, made, mean_square, numbers


class TiedHead(nn.Module):
    """Tokens to logits through one table, read as an embedding and as a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 24, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.table(tokens))))


def test_a_head_tied_to_the_embedding() -> None:
    """A partitioner that goes by module names cuts the shared matrix twice, or makes two of it.

    After https://github.com/deepspeedai/DeepSpeed/issues/8582.
    """
    tokens = ids(4, 4, below=24)
    for module in assert_same(TiedHead, (tokens,), grids=[X2, Y2, XY, Z2, DATA2, XZ], steps=3):
        assert module.head.weight is module.table.weight
        assert len(list(module.parameters())) == 3

    tied, broken = made(TiedHead), made(TiedHead)
    broken.head.weight = nn.Parameter(broken.table.weight.detach().clone())
    for model in (tied, broken):
        mean_square(model(tokens)).backward()
    assert_tells_apart(tied.table.weight.grad, broken.table.weight.grad)


class SharedNorms(nn.Module):
    """Three norms with one weight and bias; two layers with one matrix and a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        for norm in self.norms[1:]:
            norm.weight, norm.bias = self.norms[0].weight, self.norms[0].bias
        self.layers[2].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + torch.tanh(layer(norm(x)))
        return x


def test_several_modules_that_share_a_weight() -> None:
    """The shared weight goes under the name of its last user, and the others lose theirs.

    After https://github.com/pytorch/pytorch/issues/125192.
    """
    x = numbers(4, 8)
    other = made(SharedNorms, seed=5)
    for module in assert_same(SharedNorms, (x,), grids=[X2, Y2, XY, Z2, DATA2], steps=3):
        assert len(list(module.parameters())) == 7
        assert len(module.state_dict()) == 12
        module.load_state_dict(other.state_dict())
        torch.testing.assert_close(module(x), other(x))

    tied, broken = made(SharedNorms), made(SharedNorms)
    broken.layers[2].weight = nn.Parameter(broken.layers[2].weight.detach().clone())
    for model in (tied, broken):
        mean_square(model(x)).backward()
    assert_tells_apart(tied.layers[0].weight.grad, broken.layers[0].weight.grad)


class Either(nn.Module):
    """A layer with a residual, or with a tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, residual: bool, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale + x if residual else torch.tanh(self.layer(x))


class Thrice(nn.Module):
    """One submodule, called three times with other flags, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Either()
        self.again = self.first
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.first(x, True), False)
        return self.out(self.again(x, True, scale=3.0))


def test_a_module_called_again_with_another_flag() -> None:
    """One recorded graph per module stands for all calls, whatever their constants.

    After https://github.com/pytorch/pytorch/issues/137013.
    """
    x = numbers(4, 8)
    for module in assert_same(Thrice, (x,), grids=[X2, Y2, XY, Z2, DATA2], steps=2):
        assert len(list(module.parameters())) == 4
        assert "again.layer.weight" in module.state_dict()

    model = made(Thrice)
    frozen = model.first(model.first(x, True), True)
    assert_tells_apart(model(x), model.out(model.first(frozen, True)))


class Loop(nn.Module):
    """One layer, three times in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x


def test_a_weight_used_again_and_again() -> None:
    """A gradient that is reduced at its first use lacks the others; and a second derivative is not made up.

    After https://github.com/PaddlePaddle/Paddle/issues/45443.
    """
    x = numbers(4, 8)
    modules = assert_same(Loop, (x,), grids=[X2, Y2, Z2, XZ, DATA2], steps=5)
    once = made(Loop)
    torch.tanh(once.layer(once(x).detach())).pow(2).mean().backward()
    thrice = made(Loop)
    thrice(x).pow(2).mean().backward()
    assert_tells_apart(thrice.layer.weight.grad, once.layer.weight.grad)

    leaf = x.clone().requires_grad_()
    with pytest.raises(axograph.UnsupportedError, match="cannot be differentiated again"):
        torch.autograd.grad(modules[0](leaf).sum(), leaf, create_graph=True)
