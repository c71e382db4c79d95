"""Model classes of the transformers library, as they are, called as their users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.cases.same import DATA2, X2, XY, Y2, Z2, assert_same
from tests.zoo import double_everywhere

TINY = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**TINY, intermediate_size=48, num_key_value_heads=2, use_cache=False)
    )


def _bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**TINY, intermediate_size=64))


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=4, use_cache=False)
    )


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("build", [_llama, _bert, _gpt2, _t5], ids=["llama", "bert", "gpt2", "t5"])
def test_models_with_a_padded_batch(build: Callable[[], nn.Module]) -> None:
    """The plain model class stops being traceable from one release to the next: masks, caches, output classes.

    The second row is padded. T5 also returns its cache, as it does by default. After
    https://github.com/huggingface/transformers/issues/36022.
    """
    tokens = torch.arange(12).view(2, 6) * 5 % 97
    mask = torch.ones_like(tokens)
    mask[1, 4:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask, "labels": tokens}

    def loss(output: Any) -> torch.Tensor:
        return output.loss

    with double_everywhere():
        assert_same(build, (), inputs, grids=[X2, Y2, Z2, XY, DATA2], loss=loss, train=False)
