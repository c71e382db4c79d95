"""Calls as users write them, and outputs in the containers that the model returns."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.cases.same import (
    DATA2,
    X2,
    XY,
    Y2,
    Z2,
    assert_equal,
    assert_same,
    assert_tells_apart,
    captured_once,
    ids,
    made,
    numbers,
)


class Optional(nn.Module):
    """A mask, a scale and labels that a call may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0,
                labels: torch.Tensor | None = None) -> Any:  # fmt: skip
        y = self.layer(x) * scale
        if mask is not None:
            y = y.masked_fill(mask == 0, 0.0)
        return y if labels is None else (y, F.mse_loss(y, labels))


X, MASK = numbers(4, 8), (numbers(4, 8, seed=3) > 0).long()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X,), {}), ((), {"mask": MASK, "x": X}), ((X, MASK), {"scale": 0.5}), ((X,), {"labels": X + 1, "mask": None})],
    ids=["one", "keywords in any order", "both", "None"],
)
def test_keywords_and_arguments_left_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The traced model takes a list of tensors only, or binds labels to the place of the mask.

    After https://github.com/pytorch/PiPPy/issues/928.
    """
    assert_same(Optional, args, kwargs, grids=[X2, Y2, Z2, DATA2])


class Either(nn.Module):
    """Takes ids, or their embeddings, but not both."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor | None = None, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        if (tokens is None) == (embeddings is None):
            raise ValueError("either tokens or embeddings")
        return self.layer(torch.relu(self.table(tokens) if embeddings is None else embeddings))


def test_embeddings_in_place_of_ids() -> None:
    """Tracing settles for the branch of the ids, or meets a proxy where the model asks for None.

    The table that a call does not use keeps no gradient. After
    https://github.com/huggingface/transformers/issues/31958.
    """
    tokens, embeddings = ids(2, 4, below=20), numbers(2, 4, 8)
    modules = assert_same(Either, (tokens,), grids=[X2, Y2, Z2])
    assert_same(Either, (), {"embeddings": embeddings}, grids=[X2, Y2, Z2])
    with pytest.raises(ValueError, match="either tokens or embeddings"):
        modules[0](tokens, embeddings)


class Named(NamedTuple):
    """What a model may return."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    past: None


class Returning(nn.Module):
    """Returns its tensors in one of several containers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        hidden = torch.tanh(self.first(x))
        logits = self.second(hidden)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        containers = {
            "tuple": (logits, hidden),
            "dict": {"loss": loss, "logits": logits, "hidden": [hidden, x]},
            "named": Named(logits, (hidden,), None),
            "nested": [logits, [hidden, {"best": logits.argmax(-1)}, hidden], 3, "ok"],
        }
        return containers[self.kind]


@pytest.mark.parametrize("kind", ["tuple", "dict", "named", "nested"])
def test_outputs_keep_their_containers(kind: str) -> None:
    """A tracer gives back a flat list, whatever the model returns.

    After https://github.com/pytorch/torchtitan/issues/2882.
    """
    x, labels = numbers(4, 8), torch.tensor([0, 1, 4, 2])
    build = partial(Returning, kind)
    assert_same(build, (x,), grids=[X2, Y2, Z2, DATA2])
    for module in assert_same(build, (x, labels), grids=[X2, Y2, Z2, DATA2]):
        output = module(x, labels)
        assert type(output) is type(made(build)(x, labels))


class Positions(nn.Module):
    """Makes positions and a mask from the size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.out = nn.Embedding(30, 8), nn.Embedding(16, 8), nn.Linear(8, 30)

    def forward(self, tokens: torch.Tensor, masked: bool = True) -> torch.Tensor:
        batch, length = tokens.shape
        where = torch.arange(length, device=tokens.device).unsqueeze(0).expand(batch, length)
        hidden = self.tokens(tokens) + self.positions(where)
        scores = hidden @ hidden.transpose(1, 2) / 8
        if masked:
            scores = scores + torch.full((length, length), float("-inf"), device=tokens.device).triu(1)
        return self.out(scores.softmax(-1) @ hidden)


def test_positions_made_from_the_size_of_the_input() -> None:
    """A range over a size of the input cannot be traced, or freezes the size.

    After https://github.com/pytorch/pytorch/issues/51803.
    """
    model = made(Positions)
    modules = assert_same(Positions, (ids(2, 6, below=30),), grids=[X2, Y2, Z2, DATA2, XY])
    with captured_once():
        for module in modules:
            for shape in ((4, 6), (2, 9), (2, 4)):
                tokens = ids(*shape, below=30)
                assert_equal(module(tokens), model(tokens), str(shape))
    assert_tells_apart(model(tokens), model(tokens, masked=False))
