"""The models that numbers are proven on: two of our own, and tiny Hugging Face models with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.overrides import TorchFunctionMode

VOCABULARY = 96


class MLP(nn.Module):
    """Two layers, a norm and a residual; a buffer that counts calls and one that averages."""

    def __init__(self, features: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.average.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Block(nn.Module):
    """A transformer block with a fused projection of queries, keys and values."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.norm_mlp = nn.LayerNorm(features)
        self.up = nn.Linear(features, 4 * features)
        self.down = nn.Linear(4 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, features = x.shape
        fused = self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, features // self.heads).transpose(1, 2) for t in fused)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(mixed.reshape(batch, length, features))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class GPT(nn.Module):
    """A GPT whose head is its embedding."""

    def __init__(
        self, features: int = 32, heads: int = 8, layers: int = 2, length: int = 8, vocabulary: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, features)
        self.positions = nn.Embedding(length, features)
        self.blocks = nn.ModuleList(Block(features, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(features)
        self.head = nn.Linear(features, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100), "logits": logits}


def _tiny() -> dict[str, Any]:
    return {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}  # fmt: skip


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_tiny(), intermediate_size=48, num_key_value_heads=2)
    )


def _qwen3() -> nn.Module:
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**_tiny(), intermediate_size=48, num_key_value_heads=2, head_dim=8)
    )


def _opt() -> nn.Module:
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(**_tiny(), ffn_dim=64, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0)
    )


def _gpt_neox() -> nn.Module:
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**_tiny(), intermediate_size=64))


def _bert() -> nn.Module:
    config = transformers.BertConfig(
        **_tiny() | {"pad_token_id": 0}, intermediate_size=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


@dataclass(frozen=True)
class Case:
    """A model, and a batch for it."""

    name: str
    build: Callable[[], nn.Module]
    is_language_model: bool = True

    def model(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build()

    def inputs(self, batch: int = 4, length: int = 8) -> dict[str, torch.Tensor]:
        """A batch with some labels ignored, unevenly over its rows."""
        generator = torch.Generator().manual_seed(1)
        if not self.is_language_model:
            return {"x": torch.randn(batch, length, 32, generator=generator)}
        ids = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
        labels = ids.clone()
        labels[0, length // 2 :] = -100
        labels[-1, 1] = -100
        return {"input_ids": ids, "labels": labels}


CASES = (
    Case("mlp", MLP, is_language_model=False),
    Case("gpt", GPT),
    Case("gpt2", _gpt2),
    Case("llama", _llama),
    Case("qwen3", _qwen3),
    Case("opt", _opt),
    Case("gpt_neox", _gpt_neox),
    Case("bert", _bert),
)
ODD = Case("odd", lambda: GPT(features=30, heads=6, layers=1, length=7, vocabulary=97))
"""A GPT in which little divides: give it a batch of 5."""

BY_NAME = {case.name: case for case in (*CASES, ODD)}


def loss_of(output: Any) -> torch.Tensor:
    """The loss among the outputs, or the mean square of the only output."""
    if isinstance(output, torch.Tensor):
        return output.pow(2).mean()
    loss = output["loss"]
    assert isinstance(loss, torch.Tensor)
    return loss


class _Double(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def change(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        args = tuple(change(a) for a in args)
        kwargs = {name: change(value) for name, value in (kwargs or {}).items()}
        return torch.Tensor.double(*args, **kwargs) if func is torch.Tensor.float else func(*args, **kwargs)


@contextmanager
def double_everywhere() -> Iterator[None]:
    """Casts to float32 become casts to float64, for the original and the compiled model alike.

    Hugging Face models take norms and losses in float32 whatever their parameters are: two correct programs then
    differ by 1e-7. In float64 throughout, they agree to rounding of 1e-16, and a fault of 1e-9 shows.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(default)
