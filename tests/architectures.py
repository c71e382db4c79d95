"""Hugging Face architectures with tiny random weights: the decoders and the mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

VOCABULARY = 96
Inputs = dict[str, torch.Tensor]


def tokens(batch: int = 4, length: int = 8) -> Inputs:
    """Token ids and labels `[batch, length]`; some labels are ignored, unevenly over the rows."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    labels = ids.clone()
    labels[0, length // 2 :] = -100
    labels[-1, 1] = -100
    return {"input_ids": ids, "labels": labels}


@dataclass(frozen=True)
class Architecture:
    """A model whose outputs have a loss, and a batch for it."""

    name: str
    build: Callable[[], nn.Module]
    """Random weights, dropouts of 0; the seed is the caller's."""
    inputs: Callable[[], Inputs] = tokens
    """The global batch, by the names of forward's parameters; floats in float64."""
    grids: tuple[tuple[int, int, int, int], ...] = ((2, 2, 2, 2),)
    """The grids that it is tested on, (x, y, z, data)."""
    single_axes: bool = False
    """Whether it is also tested on the four grids that cut one axis alone."""

    def __str__(self) -> str:
        return self.name

    def model(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build().double()


def _causal(name: str, config_name: str = "", **options: Any) -> Callable[[], nn.Module]:
    """A language model of one layer; `options` override the tiny sizes that most configurations share.

    Weights are drawn wider than usual, so that scores, gates and capped logits matter to the loss.
    """

    def build() -> nn.Module:
        tiny = {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": VOCABULARY, "initializer_range": 0.2, "use_cache": False,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
        }  # fmt: skip
        config = getattr(transformers, config_name or f"{name}Config")(**tiny | options)
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
        return model

    return build


GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
CAPPED = {
    "layer_types": ["sliding_attention"], "attn_implementation": "eager",
    "attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.0,
}  # fmt: skip
ALTERNATING = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
MULTIPLIERS = {
    "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
GROUPED_EXPERTS = {
    "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
    "first_k_dense_replace": 0,
}  # fmt: skip

IN_TURN = ((2, 1, 2, 2), (1, 2, 1, 2))
"""Every axis, x and y in turn: with both, the search takes 10 s or more where attention is written out as products."""

DECODERS = (
    Architecture("gptj", _causal("GPTJ", n_positions=16, n_embd=32, n_layer=1, n_head=4, rotary_dim=4, n_inner=64)),
    Architecture("bloom", _causal("Bloom", n_layer=1, n_head=4), single_axes=True),
    Architecture("falcon-multi-query", _causal("Falcon", multi_query=True, ffn_hidden_size=64), grids=IN_TURN),
    Architecture(
        "falcon-new-decoder",
        _causal("Falcon", new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=64),
    ),
    Architecture(
        "falcon-alibi",
        _causal("Falcon", multi_query=False, alibi=True, bias=True, parallel_attn=False, ffn_hidden_size=64),
    ),
    Architecture("mistral", _causal("Mistral", sliding_window=4)),
    Architecture("qwen2", _causal("Qwen2")),
    Architecture("gemma2", _causal("Gemma2", **GEMMA, **CAPPED), grids=IN_TURN),
    Architecture("gemma3", _causal("Gemma3", "Gemma3TextConfig", **GEMMA, **ALTERNATING)),
    Architecture("phi3", _causal("Phi3")),
    Architecture("stablelm", _causal("StableLm", use_qkv_bias=True, qk_layernorm=True)),
    Architecture("olmo2", _causal("Olmo2")),
    Architecture("granite", _causal("Granite", **MULTIPLIERS)),
)

MIXTURES = (
    Architecture(
        "mixtral",
        _causal("Mixtral", num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5),
        single_axes=True,
    ),
    Architecture(
        "qwen3-moe",
        _causal("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True),
    ),
    Architecture("deepseek-v3", _causal("DeepseekV3", **LATENT, **GROUPED_EXPERTS), grids=IN_TURN),
)

ARCHITECTURES = (*DECODERS, *MIXTURES)
