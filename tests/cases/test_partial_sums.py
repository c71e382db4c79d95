"""Biases, norms and numbers around sums that ranks still have to add up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.cases.same import (
    DATA2,
    X2,
    X4,
    X_DATA,
    XY,
    XYZ,
    XZ,
    Y2,
    Y4,
    YZ,
    Z2,
    Z4,
    Z_DATA,
    assert_same,
    assert_tells_apart,
    ids,
    made,
    mean_square,
    numbers,
)


class Gated(nn.Module):
    """A block whose result is scaled by feature before the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(F.gelu(self.up(self.norm(x))))


def test_gradients_of_vectors_over_a_cut_batch() -> None:
    """Along the axis that cuts the batch only matrices are reduced; biases and norms keep a share of the gradient.

    After https://github.com/axonn-ai/axonn/issues/57.
    """
    x = numbers(4, 3, 8)
    assert_same(Gated, (x,), grids=[Z2, Z4, XZ, YZ, XY, Z_DATA], steps=5)

    whole, share = made(Gated), made(Gated)
    mean_square(whole(x)).backward()
    mean_square(share(x[:2])).backward()
    assert_tells_apart(whole.norm.weight.grad, share.norm.weight.grad)


def _large_bias() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
    nn.init.constant_(model[2].bias, 100.0)
    return model


def test_a_bias_after_a_cut_sum() -> None:
    """Every rank of the sum adds the bias.

    After https://github.com/awslabs/slapo/issues/10.
    """
    x = numbers(4, 8)
    assert_same(_large_bias, (x,), grids=[X2, Y2, Y4, XY, XYZ])
    assert_same(lambda: nn.Sequential(nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)), (x,), grids=[XY])
    right = made(_large_bias)(x)
    assert_tells_apart(right, right + 100.0)


class Residuals(nn.Module):
    """Three layers on a residual stream, where an error grows with depth."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x)) + x
        return x


def test_gradients_through_a_partial_sum_and_a_bias() -> None:
    """The forward is right, and the gradient that flows back is too large by the number of ranks.

    Seen in the gradient of the input, which `assert_same` compares. After
    https://github.com/pytorch/torchtitan/issues/2106.
    """
    assert_same(Residuals, (numbers(4, 8),), grids=[X2, Y2, X4, XY])


class Affine(nn.Module):
    """What people do to a matmul's result before anything has added it up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = self.second(torch.tanh(self.first(x)))
        shifted = (p + 10, 10 - p, p * 3, p / (p.sum() + 1e-6), p.mean() + 1)
        bent = (p.relu(), p.norm(dim=-1), p.amax(-1), p.pow(2).sum().sqrt(), p.abs().clamp(max=0.2))
        return (*shifted, *bent, p > 0)


def test_numbers_added_to_a_partial_sum() -> None:
    """A constant is added once per rank, and a norm of a sum becomes a sum of norms.

    After https://github.com/pytorch/pytorch/issues/163193.
    """
    assert_same(Affine, (numbers(4, 8),), grids=[X2, Y2, XY, X4, Z2, DATA2, XYZ])

    a, b = numbers(4), numbers(4, seed=2)
    assert_tells_apart(a + b + 10, (a + 10) + (b + 10))
    assert_tells_apart((a + b).norm(), a.norm() + b.norm())
    assert_tells_apart((a + b).relu(), a.relu() + b.relu())


class Block(nn.Module):
    """A norm, two layers, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    """Two blocks between an embedding and a normed head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.final, self.head = nn.LayerNorm(8), nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.final(self.blocks(self.tokens(tokens))))


def test_the_norm_after_the_last_block() -> None:
    """Where the layout of activations changes, the last norm has another gradient on each rank.

    After https://github.com/NVIDIA/Megatron-LM/issues/1446.
    """
    tokens = ids(4, 4, below=20)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    assert_same(LanguageModel, (tokens,), grids=[X2, X4, Y2, XY, XYZ, X_DATA], loss=loss, steps=3)

    whole, share = made(LanguageModel), made(LanguageModel)
    loss(whole(tokens)).backward()
    half = F.cross_entropy(share(tokens)[:, :2].flatten(0, 1), tokens[:, :2].flatten(), reduction="sum")
    (half / 16).backward()
    assert_tells_apart(whole.final.weight.grad, share.final.weight.grad)
