"""Seconds and peak memory of compiling large models on meta tensors, stage by stage.

python benchmarks/compile_time.py gpt2 --grid 2,2,2,2
python benchmarks/compile_time.py llama-8b --grid 2,4,8,16
python benchmarks/compile_time.py llama-405b --grid 8,4,16,32
python benchmarks/compile_time.py llama-8b --growth       # by layers and by axes
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import axograph
from axograph.pipeline import Stage


@dataclass(frozen=True)
class Shape:
    """A model by name: how to build it with some layers, how many it has, and the tokens of a sequence."""

    build: Callable[[int], nn.Module]
    layers: int
    length: int


def _gpt2(layers: int) -> nn.Module:
    """GPT-2 small, its vocabulary of 50,257 as it is."""
    config = GPT2Config(n_layer=layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return GPT2LMHeadModel(config)


def _llama(hidden: int, intermediate: int, heads: int) -> Callable[[int], nn.Module]:
    def build(layers: int) -> nn.Module:
        config = LlamaConfig(
            vocab_size=128256, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=8, max_position_embeddings=8192, use_cache=False,
        )  # fmt: skip
        return LlamaForCausalLM(config)

    return build


MODELS = {
    "gpt2": Shape(_gpt2, 12, 1024),
    "llama-8b": Shape(_llama(4096, 14336, 32), 32, 4096),
    "llama-405b": Shape(_llama(16384, 53248, 128), 126, 4096),
}
GROWTH_GRIDS = ((2, 1, 1, 1), (2, 4, 1, 1), (2, 4, 8, 1), (2, 4, 8, 16))
GROWTH_LAYERS = (2, 4, 8, 16, 32)


def compile_model(
    shape: Shape, layers: int, grid: tuple[int, ...], memory_bytes: float | None, quiet: bool = False
) -> axograph.ParallelModule:
    """Compile a model for a batch that z and data divide; stages are printed as they end."""
    with torch.device("meta"):
        model = shape.build(layers).to(torch.bfloat16)
        tokens = torch.empty(max(8, math.prod(grid[2:])), shape.length, dtype=torch.int64)

    def show(stage: Stage) -> None:
        if not quiet:
            print(f"{stage.name:<18} {len(stage.program.graph.nodes):>6} nodes {stage.time_s:8.2f} s", flush=True)

    inputs = {"input_ids": tokens, "labels": tokens}
    return axograph.parallelize(model, grid=grid, memory_bytes=memory_bytes, sample_inputs=inputs, observers=[show])


def growth(shape: Shape) -> None:
    """Seconds of the search by layers, on one grid, and by cut axes, for one number of layers."""
    print(f"{'layers':>8}  {'grid':<14} {'search':>8} {'localize':>9}  certificate")
    pairs = [(layers, GROWTH_GRIDS[-1]) for layers in GROWTH_LAYERS] + [(4, grid) for grid in GROWTH_GRIDS[:-1]]
    for layers, grid in pairs:
        module = compile_model(shape, layers, grid, math.inf, quiet=True)
        times = {name: stage.time_s for name, stage in module.stages.items()}
        text = ",".join(map(str, grid))
        print(
            f"{layers:>8}  {text:<14} {times['shard']:8.2f} {times['localize']:9.2f}  {module.plan.certificate}",
            flush=True,
        )


def main() -> None:
    """Compile one model for one grid, and print its stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--grid", default="2,2,2,2", help="sizes of x,y,z,data (%(default)s)")
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument(
        "--memory", type=float, help="bytes of a rank, inf for no limit (that of the cost model's machine)"
    )
    parser.add_argument("--growth", action="store_true", help="a table of seconds by layers and by axes")
    options = parser.parse_args()
    shape = MODELS[options.model]
    if options.growth:
        growth(shape)
        return
    grid = tuple(int(size) for size in options.grid.split(","))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    start_s = time.perf_counter()
    module = compile_model(shape, options.layers or shape.layers, grid, options.memory)
    total_s = time.perf_counter() - start_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{options.model} on {options.grid}: {total_s:.1f} s in all; peak {peak:.2f} GB, {before:.2f} GB before")
    print(str(module.plan).partition("\n")[0])


if __name__ == "__main__":
    main()
