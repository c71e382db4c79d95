"""Parameters and buffers of every kind: frozen, tiny, complex, integer, and running statistics."""

from __future__ import annotations

import torch
from torch import nn

from tests.cases.same import (
    DATA2,
    X2,
    X_DATA,
    XY,
    XYZ,
    Y2,
    YZ,
    Z2,
    Z4,
    assert_equal,
    assert_same,
    assert_tells_apart,
    captured_once,
    ids,
    made,
    mean_square,
    numbers,
)


class Adapted(nn.Module):
    """A frozen layer beside a trainable product of rank three, which no axis divides."""

    def __init__(self, inputs: int, outputs: int, rank: int = 3) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.inner = nn.Parameter(torch.randn(rank, inputs) / 3)
        self.outer = nn.Parameter(torch.randn(outputs, rank) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2 * (x @ self.inner.t()) @ self.outer.t()


def _adapted_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 8).requires_grad_(False), Adapted(8, 16), nn.GELU(), Adapted(16, 8))


def test_frozen_weights_beside_trainable_ones() -> None:
    """All parameters require gradients again, so everything trains; or a layer that mixes both is refused.

    After https://github.com/NVIDIA-NeMo/Automodel/issues/547.
    """
    for module in assert_same(_adapted_model, (ids(2, 4, below=10),), grids=[X2, Y2, Z2, XY, DATA2], steps=3):
        trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        assert trainable == {"1.inner", "1.outer", "3.inner", "3.outer"}
        assert module.get_parameter("1.base.weight").grad is None


class Tables(nn.Module):
    """Complex, integer and boolean buffers, and one without dims."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.register_buffer("step", torch.tensor(7))
        self.register_buffer("order", torch.arange(3, 11))
        self.register_buffer("keep", torch.tensor([True, False] * 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(self.layer(x[:, self.order - 3]).view(-1, 4, 2)) * self.turn
        return torch.where(self.keep, torch.view_as_real(turned).flatten(1), x) / self.step


def test_complex_and_integer_buffers() -> None:
    """A complex table stops the first synchronisation, and integers are averaged to zero.

    After https://github.com/facebookresearch/fairseq2/issues/85.
    """
    for module in assert_same(Tables, (numbers(4, 8),), grids=[X2, Z2, DATA2, (2, 2, 1, 2)]):
        assert torch.equal(module.order, torch.arange(3, 11))
        assert module.turn.dtype == torch.complex128
        assert int(module.step) == 7
        assert module.keep.dtype == torch.bool


class Scalars(nn.Module):
    """Parameters of no dims, of one element, and of three dims."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.gain = nn.Parameter(torch.zeros(1))
        self.mixed = nn.Parameter(torch.ones(1, 1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale.exp() * (1 + self.gain) + self.mixed.mean() * x.sum(-1, keepdim=True)


def test_parameters_of_one_element() -> None:
    """A parameter of one element keeps a gradient of zero, and one without dims is refused.

    After https://github.com/pytorch/pytorch/issues/144045.
    """
    x = numbers(4, 8)
    for module in assert_same(Scalars, (x,), grids=[X2, Y2, Z2, Z4, DATA2, XYZ], steps=3):
        assert module.scale.shape == ()
        assert module.gain.shape == (1,)
    model = made(Scalars)
    mean_square(model(x)).backward()
    assert_tells_apart(model.gain.grad, torch.zeros(1))


def _convolutions() -> nn.Module:
    convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))


def test_batch_norm_over_a_cut_batch() -> None:
    """Each rank normalises by its own rows, and a mean of their variances is not the variance.

    After https://github.com/facebookresearch/fvcore/issues/152.
    """
    x = numbers(6, 3, 4, 4)
    x[:2] += 5
    modules = assert_same(_convolutions, (x,), grids=[DATA2, Z2, (1, 1, 1, 3), X2, X_DATA, YZ], steps=2)
    with captured_once():
        for module in modules:
            model = made(_convolutions).eval()
            model.load_state_dict(module.state_dict())
            assert_equal(module.eval()(x), model(x), "evaluated with the running statistics")
            assert int(module[1].num_batches_tracked) == 3

    values = made(_convolutions)[0](x).transpose(0, 1).flatten(1)
    shares = [share.var(1, unbiased=False) for share in values.chunk(2, 1)]
    assert_tells_apart(values.var(1, unbiased=False), (shares[0] + shares[1]) / 2)
