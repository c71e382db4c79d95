"""Schedules against the orders they compete with and against the optimum, and the seconds of the pass by layers.

python -m benchmarks.schedules                  # blocks of one layer: a table
python -m benchmarks.schedules --growth         # 8, 16, 32, 64 and 126 layers of a GPT
python -m benchmarks.schedules --memory         # time against memory of a GPT of four layers
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import torch

import axograph
from axograph.capture.program import Program
from axograph.cost_model import RingModel
from axograph.cost_model.simulator import simulate
from axograph.grid import Grid
from axograph.passes.scheduling.axonn import axonn_order
from axograph.passes.scheduling.buckets import BucketCollectives
from axograph.passes.scheduling.lists import least_s
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.report import report
from axograph.passes.scheduling.schedule import SLACK, Schedule
from axograph.passes.scheduling.tasks import Tasks
from axograph.pipeline import Stages, run
from tests.passes.scheduling.blocks import BLOCKS
from tests.passes.scheduling.optimum import optimum
from tests.zoo import GPT

MODEL = RingModel()
GRID = Grid(2, 2, 2, 2)
SLACKS = (1.0, 1.05, 1.1, 1.2, 1.5, 2.0)
GROWTH_LAYERS = (8, 16, 32, 64, 126)


def blocks(limit_s: float) -> None:
    """Milliseconds of each half of each block; memory free, and within `SLACK` times that of the order given."""
    print(
        f"{'block':44} {'tasks':>5} {'given':>7} {'AxoNN':>7} {f'<= {SLACK} M':>8} {'ours':>7} {'memory':>6} "
        f"{'bound':>7} {'CP-SAT':>7} {'ours/CP':>7} {'proven':>7}"
    )
    for block in BLOCKS:
        for name, half in block.halves():
            tasks = Tasks(half, block.axes, MODEL)
            given, axonn = (_ms(tasks, nodes) for nodes in (list(half.graph.nodes), axonn_order(tasks)))
            within, _ = _scheduled(half, block.axes, SLACK)
            ours, memory = _scheduled(half, block.axes, math.inf)
            best = optimum(tasks, limit_s)
            print(
                f"{name:44} {len(tasks):5} {given:7.3f} {axonn:7.3f} {within:8.3f} {ours:7.3f} {memory:6.2f} "
                f"{least_s(tasks) * 1e3:7.3f} {best.found_s * 1e3:7.3f} {ours / best.found_s / 1e3:7.3f} "
                f"{ours / best.bound_s / 1e3:7.3f}",
                flush=True,
            )


def _ms(tasks: Tasks, nodes: list[torch.fx.Node]) -> float:
    return simulate(tasks.steps(nodes)).time_s * 1e3


def _scheduled(half: Program, grid: Grid, slack: float) -> tuple[float, float]:
    """Milliseconds of the schedule, and its memory as a part of that of the order given."""
    done = Schedule(grid=grid, cost_model=MODEL, slack=slack).schedule(half)
    tasks = Tasks(done, grid, MODEL)
    before = Lifetimes(Tasks(half, grid, MODEL)).peak(list(half.graph.nodes))
    nodes = list(done.graph.nodes)
    return _ms(tasks, nodes), Lifetimes(tasks).peak(nodes) / before


def _gpt(layers: int, batch: int) -> Program:
    """Both halves of a GPT on `GRID`, as the passes `bucket` and `schedule` are given them."""
    with torch.device("meta"):
        model = GPT(features=4096, heads=32, layers=layers, length=2048).to(torch.bfloat16)
        tokens = torch.empty(batch, 2048, dtype=torch.int64)
    module = axograph.parallelize(
        model, (2, 2, 2, 2), scheme="axonn", sample_inputs={"input_ids": tokens, "labels": tokens},
        memory_bytes=math.inf, chunks=1, overlap=False,
        pipeline=lambda passes: [step for step in passes if step.name != "bucket"],
    )  # fmt: skip
    return module.stages["split"].program


def memory() -> None:
    """What a step takes and what it holds at most, by how much of the memory of the order given it may take."""
    before = _gpt(layers=4, batch=16)
    given = report(before, GRID, MODEL)
    peak = max(half.peak_bytes for half in given.halves)
    print(f"{'slack':>6} {'step, ms':>9} {'exposed, ms':>11} {'peak, MB':>9} {'of the order given':>18}")
    print(f"{'given':>6} {given.time_s * 1e3:9.2f} {given.exposed_s * 1e3:11.2f} {peak / 1e6:9.1f} {1.0:18.3f}")
    for slack in SLACKS:
        after = report(Schedule(grid=GRID, cost_model=MODEL, slack=slack).run(before), GRID, MODEL)
        parts = [now.peak_bytes / then.peak_bytes for now, then in zip(after.halves, given.halves, strict=True)]
        peak = max(half.peak_bytes for half in after.halves)
        print(
            f"{slack:6} {after.time_s * 1e3:9.2f} {after.exposed_s * 1e3:11.2f} {peak / 1e6:9.1f} {max(parts):18.3f}",
            flush=True,
        )


def growth(layer_counts: Sequence[int]) -> None:
    """Seconds of the passes by layers, and how far each half is above the bound."""
    print(
        f"{'layers':>6} {'tasks':>6} {'bucket, s':>9} {'schedule, s':>11} {'forward/bound':>13} {'backward/bound':>14}"
    )
    for layers in layer_counts:
        before = _gpt(layers, batch=16)
        begin_s = time.process_time()
        bucketed = run(before, [BucketCollectives(grid=GRID, cost_model=MODEL)], Stages())
        bucketed_s = time.process_time()
        after = run(bucketed, [Schedule(grid=GRID, cost_model=MODEL)], Stages())
        scheduled_s = time.process_time()
        assert before.backward is not None
        number = sum(len(Tasks(half, GRID, MODEL)) for half in (before, before.backward))
        forward, backward = (half.timeline.time_s / half.bound_s for half in report(after, GRID, MODEL).halves)
        print(
            f"{layers:6} {number:6} {bucketed_s - begin_s:9.1f} {scheduled_s - bucketed_s:11.1f} {forward:13.3f} "
            f"{backward:14.3f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", type=int, nargs="*", metavar="LAYERS")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of the solver for each block")
    options = parser.parse_args()
    if options.memory:
        memory()
    elif options.growth is not None:
        growth(options.growth or GROWTH_LAYERS)
    else:
        blocks(options.limit)
