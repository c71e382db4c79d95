"""What every system trains: a plain GPT, its sizes, its batches, its optimizer. Nothing here knows of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The model, and the global batch."""

    hidden: int
    layers: int
    heads: int
    vocab: int
    sequence: int
    batch: int
    """Sequences of all ranks together."""


SIZES = {
    "balanced": Sizes(hidden=256, layers=4, heads=4, vocab=1024, sequence=128, batch=16),
    "brief": Sizes(hidden=256, layers=4, heads=4, vocab=1024, sequence=128, batch=2),
    "tiny": Sizes(hidden=64, layers=2, heads=4, vocab=256, sequence=32, batch=8),
}
"""On two ranks at 200 Mbit/s all-reducing the gradients takes less than computing (balanced), or far more (brief)."""


class Attention(nn.Module):
    """Causal attention; the rows of `qkv` lie head by head, so that equal cuts of them are cuts over heads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.hidden // sizes.heads
        self.qkv = nn.Linear(sizes.hidden, 3 * sizes.hidden, bias=False)
        self.out = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        parts = self.qkv(x).view(batch, sequence, -1, 3, self.head).transpose(1, 2).unbind(3)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))


class MLP(nn.Module):
    """Two products and a GELU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.hidden, 4 * sizes.hidden, bias=False)
        self.down = nn.Linear(4 * sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """A pre-norm layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(sizes.hidden), Attention(sizes)
        self.norm2, self.mlp = nn.LayerNorm(sizes.hidden), MLP(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens and the tokens that follow them, both [batch, sequence], to their mean cross-entropy."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab, sizes.hidden)
        self.positions = nn.Parameter(torch.zeros(sizes.sequence, sizes.hidden))
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def make_model(sizes: Sizes) -> GPT:
    """The model, the same on every rank of every system."""
    torch.manual_seed(0)
    return GPT(sizes)


def make_batch(sizes: Sizes, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step: counting up by a stride, which can be learnt."""
    generator = torch.Generator().manual_seed(step % 4)
    start = torch.randint(sizes.vocab, (sizes.batch, 1), generator=generator)
    stride = torch.randint(1, 17, (sizes.batch, 1), generator=generator)
    row = (start + stride * torch.arange(sizes.sequence + 1)) % sizes.vocab
    return row[:, :-1].contiguous(), row[:, 1:].contiguous()


def share(batch: Iterable[torch.Tensor], rank: int, ranks: int) -> list[torch.Tensor]:
    """One rank's part of a global batch."""
    return [tensor.chunk(ranks)[rank] for tensor in batch]


def make_optimizer(parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
    """AdamW, or SGD, whose losses show a wrong scale of the gradients as AdamW's do not."""
    groups: dict[object, list[nn.Parameter]] = {}  # foreach kernels do not mix plain tensors and DTensors
    for parameter in parameters:
        groups.setdefault(type(parameter.data), []).append(parameter)
    given = [{"params": group} for group in groups.values()]
    if kind == "sgd":
        return torch.optim.SGD(given, lr=0.3, foreach=True)
    return torch.optim.AdamW(given, lr=3e-4, foreach=True)
