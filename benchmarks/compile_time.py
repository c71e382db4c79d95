"""Seconds and peak memory of compiling large models on meta tensors, stage by stage.

python benchmarks/compile_time.py gpt2 --grid 2,2,2,2
python benchmarks/compile_time.py llama-8b --grid 2,4,8,16
"""

from __future__ import annotations

import argparse
import math
import resource
import time

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import axograph


def gpt2() -> tuple[nn.Module, int]:
    """The 12 layers of GPT-2 small, vocabulary rounded up to 50,304; 1,024 tokens a sequence."""
    config = GPT2Config(vocab_size=50304, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return GPT2LMHeadModel(config), 1024


def llama() -> tuple[nn.Module, int]:
    """The 32 layers of Llama-3-8B; 4,096 tokens a sequence."""
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), 4096


MODELS = {"gpt2": gpt2, "llama-8b": llama}


def main() -> None:
    """Compile one model for one grid, and print its stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--grid", default="2,2,2,2", help="sizes of x,y,z,data (%(default)s)")
    options = parser.parse_args()
    grid = tuple(int(size) for size in options.grid.split(","))
    with torch.device("meta"):
        model, length = MODELS[options.model]()
        tokens = torch.empty(max(8, math.prod(grid[2:])), length, dtype=torch.int64)
    model = model.to(torch.bfloat16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    start_s = time.perf_counter()
    module = axograph.parallelize(model, grid=grid, sample_inputs={"input_ids": tokens, "labels": tokens})
    total_s = time.perf_counter() - start_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(module.stages)
    print(
        f"{options.model} on {options.grid}: {total_s:.1f} s in all; peak memory {peak:.2f} GB, {before:.2f} GB before"
    )
    print(str(module.plan).partition("\n")[0])


if __name__ == "__main__":
    main()
