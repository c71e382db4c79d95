"""What the ranks of a grid do in common, for Hugging Face architectures at their usual sizes: plans on the meta device.

    python benchmarks/repeated_work.py [--grid 2,2,2,2] [--batch 8] [--length 2048] [Llama Gemma2 ...]

Two layers in bfloat16. For each architecture: the seconds of capture and of the search, its certificate, and every
operator that axes do not cut, with its share of a rank's compute time under the cost model.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import transformers
from torch import nn

from axograph.capture import capture
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.inspection import repeated
from axograph.passes.group_heads import GroupHeads
from axograph.passes.normalize import Normalize
from axograph.passes.recognize_causal import RecognizeCausal
from axograph.passes.sharding.shard import Shard
from axograph.passes.unsort_experts import UnsortExperts

OPTIONS: dict[str, dict[str, Any]] = {
    "GPTJ": {"n_layer": 2},
    "Bloom": {"n_layer": 2, "hidden_size": 4096, "n_head": 32},
    "Falcon": {},
    "Mistral": {},
    "Qwen2": {},
    "Gemma2": {"attn_implementation": "eager"},
    "Gemma3": {"layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": {},
    "StableLm": {},
    "Olmo2": {},
    "Granite": {},
    "Mixtral": {},
    "Qwen3Moe": {},
    "DeepseekV3": {"first_k_dense_replace": 1},
}
"""What differs from the defaults of transformers, which are published sizes but for Bloom's."""


def build(name: str) -> nn.Module:
    """Two layers of an architecture, without memory."""
    config_name = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**{"num_hidden_layers": 2, "use_cache": False} | OPTIONS.get(name, {}))
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.to(torch.bfloat16)


def report(name: str, grid: Grid, shape: tuple[int, int], least: float) -> None:
    """Print what is repeated in the cheapest plan."""
    ids = torch.empty(shape, dtype=torch.int64, device="meta")
    start_s = time.perf_counter()
    program = capture(build(name), (), {"input_ids": ids, "labels": ids})
    captured_s = time.perf_counter()
    for step in (Normalize(), UnsortExperts(), GroupHeads(), RecognizeCausal()):
        program = step.run(program)
    program = Shard(grid=grid, cost_model=RingModel(), batch_dims={0: 0, 1: 0}).run(program)
    searched_s = time.perf_counter()
    assert program.plan is not None
    print(f"{name}: capture {captured_s - start_s:.0f} s, search {searched_s - captured_s:.0f} s, "
          f"{program.plan.certificate}")  # fmt: skip
    for line in (*program.plan.notes, *repeated(program, grid, RingModel(), least)):
        print(f"    {line}")


def main() -> None:
    """The architectures of the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(OPTIONS))
    parser.add_argument("--grid", default="2,2,2,2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--least", type=float, default=0.005, help="the smallest share that is shown")
    given = parser.parse_args()
    grid = Grid.of([int(size) for size in given.grid.split(",")])
    for name in given.names:
        report(name, grid, (given.batch, given.length), given.least)


if __name__ == "__main__":
    main()
