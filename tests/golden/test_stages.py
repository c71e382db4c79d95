"""Golden stages: the printed program after each pass, for a few models and grids, reviewed by eye.

After a change that is meant to change them: `UPDATE_GOLDEN=1 python -m pytest tests/golden`, and read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import axograph

FOLDER = Path(__file__).parent


class Linear(nn.Module):
    """One product, its bias, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).pow(2).mean()


class Pair(nn.Module):
    """Two products, of which the second sums over what the first is cut by."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 1024, bias=False)
        self.down = nn.Linear(1024, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Lookup(nn.Module):
    """An embedding and its loss over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.table(ids)).flatten(0, 1), ids.flatten())


CASES = {
    "linear_z": (Linear, (torch.ones(4, 8),), (1, 1, 2, 1), "axonn", 1),
    "pair_xy": (Pair, (torch.ones(64, 256),), (2, 2, 1, 1), "axonn", 1),
    "lookup_x": (Lookup, (torch.ones(2, 4, dtype=torch.int64),), (2, 1, 1, 1), "megatron", 1),
    "pair_chunks": (Pair, (torch.ones(64, 256),), (2, 1, 1, 1), "megatron", 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_stages_read_as_they_were_reviewed(name: str) -> None:
    build, inputs, grid, scheme, chunks = CASES[name]
    module = axograph.parallelize(build(), grid=grid, scheme=scheme, chunks=chunks, sample_inputs=inputs)
    text = "\n".join(str(stage) for stage in module.stages.values())
    text = re.sub(r"(?m)^(# after [\w-]+), .*$", r"\1", text)
    text = re.sub(r"(\w+\.py):\d+", r"\1", text)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
