"""Dropout on grids: the masks of every grid are those of one rank, and those that the original model would have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import axograph
from axograph.codegen import compiler
from tests.masked import Masked
from tests.zoo import double_everywhere

Grid = tuple[int, int, int, int]


class Model(nn.Module):
    """Dropout on an embedding, on attention, on whole feature maps, and on what a layer adds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(ids))
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        p = 0.25 if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=True)
        attended = F.dropout2d(attended, 0.4, self.training)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return F.cross_entropy((x @ self.embedding.weight.T).flatten(0, 1), ids.flatten())


IDS = (torch.arange(20) * 7 % 24).view(4, 5)


def seen(model: nn.Module, inputs: dict[str, Any], steps: int = 2) -> list[torch.Tensor]:
    """The losses and gradients of some steps from one seed; an original model is given the masks of our generator."""
    torch.manual_seed(3)
    found = []
    for _ in range(steps):
        if isinstance(model, axograph.ParallelModule):
            output = model(**inputs)
        else:
            with Masked() as masked:
                output = model(**inputs)
            assert masked.site > 0
        loss = output if isinstance(output, torch.Tensor) else output.loss
        model.zero_grad()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def captured() -> dict[Any, Any]:
    return {}


@pytest.fixture(autouse=True)
def _capture_once(captured: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is captured does not depend on the grid."""
    capture = compiler.capture

    def once(model: nn.Module, args: Any, kwargs: Any, **options: Any) -> Any:
        key = (type(model), model.training, len(kwargs), torch.is_grad_enabled())
        if key not in captured:
            captured[key] = capture(model, args, kwargs, **options)
        return captured[key]

    monkeypatch.setattr(compiler, "capture", once)


@pytest.mark.parametrize(
    ("grid", "chunks"),
    [((2, 1, 1, 1), 1), ((1, 2, 1, 1), 2), ((1, 1, 2, 1), 1), ((1, 1, 1, 2), 1), ((2, 2, 2, 2), 1)],
    ids=str,
)
def test_masks_are_those_of_one_rank_in_outputs_and_gradients(grid: Grid, chunks: int) -> None:
    with double_everywhere():
        torch.manual_seed(0)
        model = Model()
        expected = seen(copy.deepcopy(model), {"ids": IDS})
        module = axograph.parallelize(model, grid=grid, chunks=chunks)
        found = seen(module, {"ids": IDS})
    assert_same(found, expected)
    assert abs(found[0] - found[len(found) // 2]) > 1e-3  # the next step has other masks
    draws = [node for node in module.stages["chunk"].program.graph.nodes if "axograph.random" in str(node.target)]
    assert len(draws) == 4 * chunks


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.GPT2Config(
        vocab_size=24, n_embd=16, n_layer=1, n_head=2, n_positions=8, resid_pdrop=0.2, embd_pdrop=0.1, attn_pdrop=0.3
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS, "labels": IDS}


def test_a_hugging_face_model_trains_with_its_dropout() -> None:
    with double_everywhere():
        torch.manual_seed(0)
        model, inputs = gpt2()
        model = model.train().double()
        expected = seen(copy.deepcopy(model), inputs, 1)
        assert_same(seen(axograph.parallelize(model, grid=(2, 1, 2, 1)), inputs, 1), expected)
