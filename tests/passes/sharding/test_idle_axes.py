"""A refusal of an idle axis says what there is to cut: sizes of the products, and the number of heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from axograph.errors import GridError


class Attention(nn.Module):
    """Three heads of six features."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(18, 18) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (3, 6)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_heads_and_equal_layers_are_named() -> None:
    with pytest.raises(GridError, match="axis y cuts nothing in this model") as caught:
        axograph.parallelize(Attention(), grid=(7, 7, 1, 1))(torch.ones(1, 5, 18))
    assert caught.value.given.splitlines()[0] == "q, k, v: m=5 k=18 n=(3 6)"
    assert "attention" in caught.value.given
    assert "h=3" in caught.value.given
    assert "out: m=5 k=(3 6) n=18" in caught.value.given
    assert "none is a multiple of 7" in caught.value.rule
    assert caught.value.remedy.startswith("y=1")


def test_many_different_layers_are_counted() -> None:
    model = nn.Sequential(*(nn.Linear(size, size + 1) for size in range(2, 8)))
    with pytest.raises(GridError) as caught:
        axograph.parallelize(model, grid=(97, 1, 1, 1))(torch.ones(1, 2))
    assert caught.value.given.splitlines() == ["0: k=2 n=3", "1: k=3 n=4", "2: k=4 n=5", "3: k=5 n=6", "and 2 more"]
