"""What recomputation saves and costs: a GPT of layers of 4,096 features, in bfloat16 on meta tensors, simulated.

python benchmarks/recomputation.py                 # nothing, as little as fits two limits, and all of each block
python benchmarks/recomputation.py --layers 2      # quicker
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import axograph
from axograph.capture.program import Program, size_bytes

LIMITS = (0.9, 0.75)
"""Of what a rank holds without recomputation."""


def compiled(layers: int, grid: tuple[int, ...], batch: int, **options: Any) -> axograph.ParallelModule:
    """The model, compiled for sequences of 1,024 tokens."""
    config = GPT2Config(
        n_layer=layers, n_embd=4096, n_head=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    with torch.device("meta"):
        model = GPT2LMHeadModel(config).to(torch.bfloat16)
        tokens = torch.empty(batch, 1024, dtype=torch.int64)
    return axograph.parallelize(model, grid, sample_inputs={"input_ids": tokens, "labels": tokens}, **options)


def saved_bytes(program: Program) -> int:
    """What forward saves for backward."""
    pairs = zip(program.results(), program.outputs, strict=True)
    return sum(size_bytes(node) for node, declared in pairs if declared.kind == "saved" and node is not None)


def row(name: str, module: axograph.ParallelModule, seconds: float) -> str:
    """A line of the table; peaks and seconds are those of the program as it runs."""
    program = list(module.stages.values())[-1].program
    report = module.report()
    assert module.plan.memory is not None
    computing_s = sum(half.timeline.busy_s("compute") for half in report.halves)
    peak = max(half.peak_bytes for half in report.halves)
    return (
        f"| {name} | {module.plan.memory.total / 1e9:.2f} | {saved_bytes(program) / 1e9:.2f} | {peak / 1e9:.2f} | "
        f"{report.time_s * 1e3:.1f} | {computing_s * 1e3:.1f} | {seconds:.0f} |"
    )


def main() -> None:
    """Print the table."""
    logging.getLogger("axograph").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--grid", default="2,2,2,2")
    parser.add_argument("--batch", type=int, default=64, help="sequences, on all ranks")
    asked = parser.parse_args()
    grid = tuple(map(int, asked.grid.split(",")))
    print("| remat | a rank holds, GB | saved, GB | peak of a half, GB | step, ms | computing, ms | compiled in, s |")
    print("|---|---|---|---|---|---|---|")
    free = 0.0
    cases: list[tuple[str, float | None]] = [("none", None), *(("auto", share) for share in LIMITS), ("block", None)]
    for remat, share in cases:
        began_s = time.perf_counter()
        limit = free * share if share is not None else None
        module = compiled(asked.layers, grid, asked.batch, remat=remat, memory_bytes=limit, chunks=1)
        name = remat if limit is None else f"{remat}, within {limit / 1e9:.2f} GB"
        print(row(name, module, time.perf_counter() - began_s), flush=True)
        if remat == "none":
            assert module.plan.memory is not None
            free = module.plan.memory.total


if __name__ == "__main__":
    main()
