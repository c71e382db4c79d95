"""A vision transformer: patches, a class token, a table of positions, and packed attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.cases.same import DATA2, X2, XY, Y2, Z2, assert_same, numbers


class VisionTransformer(nn.Module):
    """Interpolates its positions where the image has another size than the table."""

    def __init__(self, features: int = 8, patch: int = 2, side: int = 4) -> None:
        super().__init__()
        self.side, self.patch = side, patch
        self.patches = nn.Conv2d(3, features, patch, patch)
        self.label = nn.Parameter(torch.randn(1, 1, features))
        self.positions = nn.Parameter(torch.randn(1, side * side + 1, features))
        layers = [nn.TransformerEncoderLayer(features, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(features, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = images.shape
        assert len(images) == batch
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.label.expand(batch, -1, -1), x), 1)
        positions = self.positions
        if x.shape[1] != positions.shape[1]:
            table = positions[:, 1:].unflatten(1, (self.side, self.side)).permute(0, 3, 1, 2)
            table = F.interpolate(table, size=(height // self.patch, width // self.patch), mode="bilinear")
            positions = torch.cat([positions[:, :1], table.flatten(2).transpose(1, 2)], 1)
        x = x + positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


@pytest.mark.parametrize("size", [8, 12])
def test_a_vision_transformer(size: int) -> None:
    """A forward that compares sizes of its input and loops over blocks cannot be traced.

    Token and positions get gradients from the whole batch. After https://github.com/pytorch/pytorch/issues/70485.
    """
    assert_same(VisionTransformer, (numbers(4, 3, size, size),), grids=[X2, Y2, Z2, XY, DATA2])
