"""`volume`: the words of known layouts, whom they count for, and the bound beside them."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from axograph.capture import capture
from axograph.cost_model import RingModel
from axograph.cost_model.lower_bounds import forward_words, training_words
from axograph.errors import AxographError
from axograph.inspection import Volume, volume

ROWS, FEATURES, HIDDEN = 64, 16, 32


class Gated(nn.Module):
    """Two products of one input, and one of what comes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.up = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, FEATURES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Stack(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


def counted(depth: int, grid: tuple[int, int, int, int], scheme: str, dtype: torch.dtype = torch.float32) -> Volume:
    """What a stack moves where memory is dear: weights so small are held until backward otherwise."""
    x = torch.ones(ROWS, FEATURES, dtype=dtype)
    model = RingModel(hold_s_per_byte=1.0)
    return volume(
        axograph.parallelize(Stack(depth).to(dtype), grid, scheme=scheme, cost_model=model, sample_inputs=(x,))
    )


def test_megatron_adds_up_twice_for_each_pair() -> None:
    found = counted(2, (4, 1, 1, 1), "megatron")
    activations = ROWS * FEATURES
    first_up, first_down, second_up, second_down = found.products
    assert first_up.paths == ("layers.0.gate", "layers.0.up")
    assert first_up.shapes == ((ROWS, 2 * HIDDEN, FEATURES),)
    assert first_up.cuts == ("m k n/x",)
    assert second_down.cuts == ("m k/x n",)
    # An all-reduce moves 2 * 3/4 of the tensor: one half for the product that makes the sum, one for the next.
    half = 3 / 4 * activations
    assert first_up.moved.words == 0  # the model's input takes no gradient
    assert first_down.moved.words == 2 * half  # its output is summed; its output's gradient is brought together
    assert second_up.moved.words == 2 * half
    assert second_down.moved.words == 2 * half  # nothing multiplies the last sum
    assert found.moved.words == 3 * 2 * half
    assert found.moved.size_bytes == 4 * found.moved.words


def test_fsdp_moves_each_weight_three_times() -> None:
    found = counted(2, (1, 1, 4, 1), "fsdp", torch.bfloat16)
    first_up, first_down, second_up, second_down = found.products
    part = 3 / 4 * FEATURES * HIDDEN
    loss = 2 * 3 / 4  # is summed after the last product
    assert first_down.moved.words == 3 * part
    assert second_down.moved.words == 3 * part + loss
    assert second_up.moved.words == 2 * 3 * part
    assert first_up.moved.words == 2 * 2 * part  # not gathered again: its input takes no gradient
    assert first_down.moved.size_bytes == 2 * 3 * part
    assert found.bound_words == sum(product.bound_words for product in found.products)
    assert first_down.bound_words == training_words(ROWS, FEATURES, HIDDEN, 4)
    assert first_up.bound_words == training_words(ROWS, 2 * HIDDEN, FEATURES, 4, input_gradient=False)


def test_without_gradients_the_bound_is_that_of_forward() -> None:
    with torch.no_grad():
        found = counted(1, (4, 1, 1, 1), "megatron")
    assert [p.bound_words for p in found.products] == pytest.approx(
        [forward_words(ROWS, 2 * HIDDEN, FEATURES, 4), forward_words(ROWS, FEATURES, HIDDEN, 4)]
    )


def test_identical_layers_are_printed_once() -> None:
    text = str(counted(4, (1, 1, 4, 1), "fsdp"))
    assert re.search(r"^  layers\.\*\.gate, up \(3 times\) +m=64 n=64 k=16  m/z k n ", text, re.M)
    assert re.search(r"^  layers\.\*\.down \(4 times\) +m=64 n=16 k=32  m/z k n +1.15 k words  4.61 kB ", text, re.M)
    assert text.splitlines()[-1].startswith("  the step")


def test_a_program_on_no_grid_is_refused() -> None:
    with pytest.raises(AxographError, match="lies on no grid"):
        volume(capture(Stack(1), (torch.ones(ROWS, FEATURES),)))
