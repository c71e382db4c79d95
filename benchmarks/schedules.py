"""Schedules against the orders they compete with and against the optimum, and the seconds of the pass by layers.

python -m benchmarks.schedules                  # blocks of one layer: a table
python -m benchmarks.schedules --growth         # 8, 16, 32, 64 and 126 layers of a GPT
"""

from __future__ import annotations

import argparse
import math
import time

import torch

import axograph
from axograph.capture.program import Program
from axograph.cost_model import RingModel
from axograph.cost_model.simulator import simulate
from axograph.grid import Grid
from axograph.passes.scheduling.axonn import axonn_order
from axograph.passes.scheduling.lists import least_s
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.report import report
from axograph.passes.scheduling.schedule import SLACK, Schedule
from axograph.passes.scheduling.tasks import Tasks
from tests.passes.scheduling.blocks import BLOCKS
from tests.passes.scheduling.optimum import optimum
from tests.zoo import GPT

MODEL = RingModel()
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


def growth() -> None:
    """Seconds of the pass by layers, and how far each half is above the bound."""
    grid = Grid(2, 2, 2, 2)
    print(f"{'layers':>6} {'tasks':>6} {'pass, s':>8} {'forward/bound':>13} {'backward/bound':>14}")
    for layers in GROWTH_LAYERS:
        with torch.device("meta"):
            model = GPT(features=4096, heads=32, layers=layers, length=2048).to(torch.bfloat16)
            tokens = torch.empty(16, 2048, dtype=torch.int64)
        module = axograph.parallelize(
            model, (2, 2, 2, 2), scheme="axonn", sample_inputs={"input_ids": tokens, "labels": tokens},
            pipeline=lambda passes: [step for step in passes if step.name != "schedule"],
        )  # fmt: skip
        before = module.stages["split"].program
        begin_s = time.process_time()
        after = Schedule(grid=grid, cost_model=MODEL).run(before)
        took_s = time.process_time() - begin_s
        assert after.backward is not None
        number = sum(len(Tasks(half, grid, MODEL)) for half in (after, after.backward))
        forward, backward = (half.timeline.time_s / half.bound_s for half in report(after, grid, MODEL).halves)
        print(f"{layers:6} {number:6} {took_s:8.1f} {forward:13.3f} {backward:14.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of the solver for each block")
    options = parser.parse_args()
    if options.growth:
        growth()
    else:
        blocks(options.limit)
