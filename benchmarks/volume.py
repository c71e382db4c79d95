"""Words that each rank moves in one layer of Llama-3-8B, forward and backward: the best plan against the bound.

python benchmarks/volume.py
python benchmarks/volume.py --tokens 8192 --ranks 64 --show

The layer alone, on meta tensors. What it takes lies as a parameter does, wherever that is cheapest, as it would between
two layers: a model's own input is given whole to every rank, and its gradient returned whole. Plans are searched under
a model that counts words and nothing else: no latency, memory for free. Grids are tried in the order of what bricks
move on them, until bricks of the next would spare less than 1 % of the best plan found; `--every-grid` tries them all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from axograph.capture import Program, capture
from axograph.cost_model import Collective, Compute
from axograph.cost_model.lower_bounds import brick_words, training_words
from axograph.cost_model.route import steps
from axograph.grid import Grid
from axograph.inspection import Volume, volume
from axograph.passes.group_heads import GroupHeads
from axograph.passes.localize import Localize
from axograph.passes.normalize import Normalize
from axograph.passes.recognize_causal import RecognizeCausal
from axograph.passes.sharding.shard import Shard
from axograph.passes.simplify import Simplify
from axograph.passes.split import Split

FEATURES, KEYS, HIDDEN = 4096, 1024, 14336
PRODUCTS = ((FEATURES + 2 * KEYS, FEATURES), (FEATURES, FEATURES), (2 * HIDDEN, FEATURES), (FEATURES, HIDDEN))
"""(n, k) of the products of a layer, those of one input as one: qkv, o, gate and up, down."""


@dataclass(frozen=True)
class Words:
    """Ring bytes; what work and memory cost only decides between plans of equal words."""

    hold_per_byte: float = 1e-6

    def compute_s(self, work: Compute) -> float:
        """So little that no word is moved to spare it."""
        return 1e-9 * work.flops

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        """The bytes that a rank sends in a ring."""
        ranks = grid.extent(collective.axes)
        return steps(collective.kind, ranks) * collective.size_bytes / ranks

    def hold_s(self, size_bytes: float) -> float:
        """So little that gathered weights are held for backward, unless told otherwise."""
        return self.hold_per_byte * size_bytes


class Layer(nn.Module):
    """One decoder layer; `start` stands for the layers before it."""

    def __init__(self, batch: int, length: int) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=FEATURES, intermediate_size=HIDDEN, num_attention_heads=32, num_key_value_heads=8,
            num_hidden_layers=1, max_position_embeddings=length, attn_implementation="sdpa",
        )  # fmt: skip
        self.start = nn.Parameter(torch.empty(batch, length, FEATURES))
        self.rotary = LlamaRotaryEmbedding(config)
        self.layer = LlamaDecoderLayer(config, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output for x + start."""
        x = x + self.start
        positions = torch.arange(x.shape[1], device=x.device)[None]
        done: torch.Tensor = self.layer(x, position_embeddings=self.rotary(x, positions), attention_mask=None)
        return done


def captured(tokens: int, batch: int) -> Program:
    """The layer as it goes into the sharding pass."""
    with torch.device("meta"):
        model = Layer(batch, tokens // batch).to(torch.bfloat16)
        x = torch.empty(batch, tokens // batch, FEATURES, dtype=torch.bfloat16)
    program = capture(model, (x,), differentiable="all")
    for step in (Normalize(), GroupHeads(), RecognizeCausal()):
        program = step.run(program)
    return program


def compiled(program: Program, shard: Shard) -> Volume:
    """What the compiled program moves."""
    grid, model = shard.grid, shard.cost_model
    local = Simplify().run(Localize(grid=grid, cost_model=model).run(shard.run(program)))
    return volume(Split(grid=grid, cost_model=model).run(local))


def brick_sum(tokens: int, rows: Sequence[int], free: Sequence[int]) -> float:
    """Words of the cheapest bricks where some axes cut the rows and the free ones any dim, product by product."""
    total = 0.0
    for n, k in PRODUCTS:
        bricks = []
        for chosen in product(range(3), repeat=len(free)):
            brick = [1, 1, 1]
            for size, dim in (*((size, 0) for size in rows), *zip(free, chosen, strict=True)):
                brick[dim] *= size
            bricks.append(2 * brick_words(tokens, n, k, (brick[0], brick[1], brick[2])))
        total += min(bricks)
    return total


def candidates(tokens: int, ranks: int) -> list[tuple[float, Shard]]:
    """The searches of all grids, with the words of their bricks, least first.

    Words do not depend on which axis is which: of grids that differ in the names of free axes, or of axes that cut
    rows, one is taken. Besides the usual roles, data may cut any dim, where x and y are not enough.
    """
    powers = [2**i for i in range(ranks.bit_length()) if ranks % 2**i == 0]
    found = []
    for x, y, z, data in product(powers, repeat=4):
        if x * y * z * data != ranks or x > y:
            continue
        shard = Shard(grid=Grid(x, y, z, data), cost_model=Words(), batch_dims={0: 0})
        if data == 1:
            found.append((brick_sum(tokens, (z,), (x, y)), shard))
        elif 1 < x <= y <= data:
            found.append((brick_sum(tokens, (z,), (x, y, data)), replace(shard, batch_axes=("z",))))
    return sorted(found, key=lambda candidate: (candidate[0], candidate[1].grid.data))


def best(program: Program, tokens: int, ranks: int, every: bool, most: int) -> Iterator[tuple[Shard, Volume, float]]:
    """Each plan that moves less than those before it, with the seconds of search and compilation."""
    least = float("inf")
    for bricks, shard in candidates(tokens, ranks)[:most]:
        if bricks >= 0.99 * least and not every:
            continue
        start_s = time.perf_counter()
        found = compiled(program, shard)
        if found.moved.words < least:
            least = found.moved.words
            yield shard, found, time.perf_counter() - start_s


def main() -> None:
    """Print a line for each number of tokens and ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[8192, 65536, 524288])
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 64, 512])
    parser.add_argument("--every-grid", action="store_true", help="also those whose bricks move more")
    parser.add_argument("--most", type=int, default=1000, help="grids to try at most")
    parser.add_argument("--show", action="store_true", help="print the best plan's volume, product by product")
    options = parser.parse_args()
    print("| tokens | ranks | bound | best plan | of the bound | grid | megatron | fsdp | fsdp, kept | axonn |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for tokens, ranks in product(options.tokens, options.ranks):
        program = captured(tokens, max(64, ranks))
        bound = sum(training_words(tokens, n, k, ranks) for n, k in PRODUCTS)
        shard, found, taken_s = list(best(program, tokens, ranks, options.every_grid, options.most))[-1]
        words = found.moved.words
        others = [
            replace(shard, grid=Grid(ranks, 1, 1, 1), scheme="megatron"),
            replace(shard, grid=Grid(1, 1, ranks, 1), scheme="fsdp", cost_model=Words(hold_per_byte=2.0)),
            replace(shard, grid=Grid(1, 1, ranks, 1), scheme="fsdp"),
            replace(shard, scheme="axonn"),
        ]
        moved = [compiled(program, replace(other, batch_axes=("data", "z"))).moved.words for other in others]
        cells = [f"{tokens:,}", str(ranks), f"{bound:.3e}", f"{words:.3e}", f"{100 * bound / words:.1f} %"]
        cells += [f"{shard.grid}{'' if 'data' in shard.batch_axes else ', data free'}"]
        print("| " + " | ".join([*cells, *(f"{other / words:.1f} x" for other in moved)]) + " |", flush=True)
        if options.show:
            print(f"{found}\n{taken_s:.1f} s")


if __name__ == "__main__":
    main()
