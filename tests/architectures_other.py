"""Hugging Face architectures with tiny random weights: encoders, encoder-decoders, vision, speech, state spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from tests.architectures import VOCABULARY, Architecture, Inputs, tokens

HEADS = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "initializer_range": 0.2}
"""Sizes that most configurations spell alike; weights drawn wider than usual, so that scores matter to the loss."""
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}


def _model(name: str, config_name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: nn.Module = getattr(transformers, name)(getattr(transformers, config_name)(**options))
        return model

    return build


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _padded_tokens() -> Inputs:
    """Rows of different lengths, and a mask that says so."""
    batch = tokens()
    batch["input_ids"] = batch["input_ids"].clamp(min=2)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["input_ids"][1, 6:], batch["attention_mask"][1, 6:] = 1, 0
    return batch


def _source_and_target() -> Inputs:
    """Rows of different lengths, and shorter ones to be told from them."""
    return _padded_tokens() | {"labels": tokens(length=4)["labels"]}


def _image(size: int = 8) -> Inputs:
    return {"pixel_values": _drawn(4, 3, size, size), "labels": torch.tensor([0, 3, 5, 7])}


def _image_and_text() -> Inputs:
    """Images with their captions: the loss compares every image with every caption of the batch."""
    ids = tokens()["input_ids"].clamp(min=3)
    ids[:, -1] = 2
    return {"input_ids": ids, "pixel_values": _drawn(4, 3, 8, 8), "return_loss": True}  # type: ignore[dict-item]


def _sound() -> Inputs:
    """Spectrograms `[batch, bins, frames]` and what was said."""
    return {"input_features": _drawn(4, 8, 16), "labels": tokens(length=4)["labels"]}


_CLIP_TOWER = HEADS | {"num_hidden_layers": 1, "projection_dim": 16, "attention_dropout": 0.0}

ARCHITECTURES = (
    Architecture(
        "roberta",
        _model("RobertaForMaskedLM", "RobertaConfig", **HEADS | NO_DROPOUT | TEXT, num_hidden_layers=1,
               max_position_embeddings=16, type_vocab_size=1),
        _padded_tokens,
    ),
    Architecture(
        "t5",  # the second layer of the encoder shares the first one's position biases
        _model("T5ForConditionalGeneration", "T5Config", **TEXT | {"pad_token_id": 0}, d_model=32, d_kv=8, d_ff=64,
               num_layers=2, num_decoder_layers=1, num_heads=4, dropout_rate=0.0, relative_attention_num_buckets=8,
               relative_attention_max_distance=16, decoder_start_token_id=0, feed_forward_proj="gated-gelu"),
        _source_and_target,
    ),
    Architecture(
        "vit",
        _model("ViTForImageClassification", "ViTConfig", **HEADS | NO_DROPOUT, num_hidden_layers=1, image_size=8,
               patch_size=4, num_labels=8),
        _image,
    ),
    Architecture(
        "convnext",
        _model("ConvNextForImageClassification", "ConvNextConfig", patch_size=4, hidden_sizes=[16, 32], depths=[1, 1],
               num_stages=2, drop_path_rate=0.0, num_labels=8),
        lambda: _image(16),
    ),
    Architecture(
        "resnet",
        _model("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1],
               num_labels=8),
        lambda: _image(16),
    ),
    Architecture(
        "clip",
        _model("CLIPModel", "CLIPConfig", projection_dim=16,
               text_config=_CLIP_TOWER | TEXT | {"max_position_embeddings": 8},
               vision_config=_CLIP_TOWER | {"image_size": 8, "patch_size": 4}),
        _image_and_text,
    ),
    Architecture(
        "whisper",
        _model("WhisperForConditionalGeneration", "WhisperConfig", **TEXT, num_mel_bins=8, d_model=32, encoder_layers=1,
               decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
               decoder_ffn_dim=64, dropout=0.0, attention_dropout=0.0, max_source_positions=8, max_target_positions=8,
               decoder_start_token_id=0, init_std=0.2),
        _sound,
    ),
    Architecture(
        "mamba",
        _model("MambaForCausalLM", "MambaConfig", **TEXT, hidden_size=32, state_size=4, num_hidden_layers=1,
               time_step_rank=4, use_cache=False, initializer_range=0.2),
        lambda: tokens(length=4),
    ),
)  # fmt: skip
