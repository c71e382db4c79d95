"""Look at what the compiler made of a small GPT: its plan, and the program after each pass.

    python examples/02_look_inside.py
    python examples/02_look_inside.py --grid 2,2,2,2 --stage localize

There is one process and no process group here, so the ranks are virtual: all of them run in this process, with the
model's own numbers.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

import axograph


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to what came in; [batch, sequence, width] in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = hidden.shape
        fused = self.query_key_value(self.attention_norm(hidden))
        query, key, value = fused.view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(batch, sequence, width))
        return hidden + self.down(functional.gelu(self.up(self.feed_norm(hidden))))


class GPT(nn.Module):
    """A language model of two blocks; the embedding of tokens is also the head."""

    def __init__(self, vocabulary: int = 64, width: int = 32, heads: int = 4, length: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = functional.linear(self.norm(self.blocks(hidden)), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main() -> None:
    """Compile the model by calling it once, then print what there is to see."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default="2,2,2,1", help="sizes of x,y,z,data (%(default)s)")
    parser.add_argument("--stage", help="the stage whose program is printed (the last)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model, tokens = GPT(), torch.randint(64, (8, 16))
    pm = axograph.parallelize(model, grid=tuple(int(size) for size in options.grid.split(",")))
    print(f"loss {pm(tokens, tokens):.6f}, of the unmodified model {model(tokens, tokens):.6f}\n")

    print(pm.plan, "\n")
    print("stages:", ", ".join(pm.stages), "\n")
    print(pm.stages[options.stage or list(pm.stages)[-1]])


if __name__ == "__main__":
    main()
