"""Attention whose heads are cut: fused, grouped, too few, and with weights that all heads share."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.cases.same import (
    DATA2,
    X2,
    X3,
    X4,
    XY,
    XZ,
    Y2,
    Y4,
    Z2,
    assert_same,
    assert_tells_apart,
    made,
    mean_square,
    numbers,
)


class FusedAttention(nn.Module):
    """Queries, keys and values in one projection, each of all heads."""

    def __init__(self, heads: int = 4, features: int = 16) -> None:
        super().__init__()
        self.heads, self.features = heads, features
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).split(self.features, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, self.features))


def test_a_fused_projection() -> None:
    """Equal blocks of the fused columns give a rank all of q and half of k.

    After https://github.com/pytorch/pytorch/issues/140069.
    """
    x = numbers(2, 5, 16)
    assert_same(FusedAttention, (x,), grids=[X2, X4, Y2, XY, XZ])
    assert_same(FusedAttention, (x,), grids=[(8, 1, 1, 1)], may_refuse="8")

    fused = made(FusedAttention).qkv(x)
    thirds = [block.chunk(3, -1)[0] for block in fused.chunk(2, -1)]
    assert_tells_apart(fused.chunk(3, -1)[0], torch.cat(thirds, -1))


class GroupedAttention(nn.Module):
    """Fewer heads of keys and values than of queries, repeated to as many."""

    def __init__(self, heads: int = 4, kept: int = 2, size: int = 4) -> None:
        super().__init__()
        self.groups, self.size = heads // kept, size
        self.queries = nn.Linear(heads * size, heads * size)
        self.keys = nn.Linear(heads * size, kept * size)
        self.values = nn.Linear(heads * size, kept * size)
        self.out = nn.Linear(heads * size, heads * size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.queries, self.keys, self.values)
        )
        k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_fewer_heads_of_keys_than_ranks() -> None:
    """A rank owns half a head of keys, and attention fails in the forward.

    After https://github.com/huggingface/transformers/issues/48307.
    """
    x = numbers(2, 5, 16)
    assert_same(GroupedAttention, (x,), grids=[X2, X4, Y4, XY])
    assert_same(partial(GroupedAttention, kept=1), (x,), grids=[X2])
    assert_same(partial(GroupedAttention, heads=6, kept=3), (numbers(2, 5, 24),), grids=[X2])

    keys = made(GroupedAttention).keys(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert_tells_apart(keys.repeat_interleave(2, 1), keys.repeat(1, 2, 1, 1))


class Attention(nn.Module):
    """Attention over heads whose number stands in the views."""

    def __init__(self, heads: int = 4, size: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.queries, self.keys, self.values, self.out = (nn.Linear(heads * size, heads * size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, features = x.shape
        projected = (layer(x) for layer in (self.queries, self.keys, self.values))
        q, k, v = (t.view(batch, length, self.heads, self.size).transpose(1, 2) for t in projected)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, features))


@pytest.mark.parametrize(("heads", "size"), [(6, 4), (5, 8), (3, 6)])
def test_heads_that_do_not_divide(heads: int, size: int) -> None:
    """52 heads on 8 ranks break deep in the forward, or a head is cut in two where only the features divide.

    Equal to one process, or refused with the number of heads. After
    https://github.com/deepspeedai/DeepSpeed/issues/3634.
    """
    x = numbers(2, 4, heads * size)
    assert_same(partial(Attention, heads, size), (x,), grids=[X2, X4, Y4, XY, X3], may_refuse=f"h={heads}")


class PlainAttention(Attention):
    """Attention written out, with the batch's size read from the input and the length left open."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        projected = (layer(x) for layer in (self.queries, self.keys, self.values))
        q, k, v = (t.view(batch, -1, self.heads, self.size).transpose(1, 2) for t in projected)
        mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, -1, self.heads * self.size))


def test_a_number_of_heads_in_a_view() -> None:
    """On a rank with half the features the view still works, and halves the sequence instead of the heads.

    After https://github.com/huggingface/transformers/issues/45109.
    """
    x = numbers(2, 6, 16)
    assert_same(PlainAttention, (x,), grids=[X2, X4, Y2, XY, Z2, DATA2])
    assert made(PlainAttention).queries(x).chunk(2, -1)[0].reshape(2, -1, 4, 4).shape[1] == 3


class NormedHeads(Attention):
    """A norm of the queries and of the keys of each head, and a temperature for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.query_norm, self.key_norm = nn.RMSNorm(self.size), nn.RMSNorm(self.size)
        self.temperature = nn.Parameter(torch.zeros(self.heads, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = (layer(x) for layer in (self.queries, self.keys, self.values))
        q, k, v = (t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in projected)
        scores = self.query_norm(q) @ self.key_norm(k).transpose(-1, -2) * self.temperature.exp()
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


def _without_half_of_the_heads(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.out.weight[:, 8:] = 0
    return model


def test_a_norm_that_all_heads_share() -> None:
    """The weight of the norm gets the gradient of the heads on its own rank only.

    After https://github.com/pytorch/torchtitan/issues/2532.
    """
    x = numbers(2, 5, 16)
    assert_same(NormedHeads, (x,), grids=[X2, X4, XY, XZ, Y2], steps=4)

    whole, part = made(NormedHeads), _without_half_of_the_heads(made(NormedHeads))
    for model in (whole, part):
        mean_square(model(x)).backward()
    assert_tells_apart(whole.query_norm.weight.grad, part.query_norm.weight.grad)


class OneKeyHead(nn.Module):
    """Many heads of queries on a single head of keys and values, which one projection makes."""

    def __init__(self, heads: int = 4, size: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.queries = nn.Linear(heads * size, heads * size)
        self.keys_values = nn.Linear(heads * size, 2 * size)
        self.out = nn.Linear(heads * size, heads * size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.queries(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = self.keys_values(x).unsqueeze(1).chunk(2, -1)
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def test_a_single_head_of_keys() -> None:
    """Copies of the one head keep equal weights while their biases drift apart.

    After https://github.com/bigcode-project/Megatron-LM/issues/12.
    """
    x = numbers(2, 5, 16)
    assert_same(OneKeyHead, (x,), grids=[X2, X4, Y2, XY, XZ], steps=5)

    whole, part = made(OneKeyHead), _without_half_of_the_heads(made(OneKeyHead))
    for model in (whole, part):
        mean_square(model(x)).backward()
    assert_tells_apart(whole.keys_values.bias.grad, part.keys_values.bias.grad)
