"""AxoGraph. Options: grid=1x1x1x2 (x, y, z, data), scheme (searched if none), schedule=0 leaves that pass out.

report=FILE writes the plan and what the simulator says of the step.
"""

from pathlib import Path

import torch

import axograph
from axograph.pipeline import Pass
from benchmarks.cluster.gloo_model import GlooModel
from benchmarks.cluster.systems import Batch, Step, Task, training
from benchmarks.cluster.workload import make_optimizer


def build(task: Task) -> Step:
    """The model compiled for the grid, under a cost model of this box."""
    grid = tuple(int(size) for size in task.options.get("grid", f"1x1x1x{task.ranks}").split("x"))
    left_out = "schedule" if task.options.get("schedule") == "0" else None

    def pipeline(passes: tuple[Pass, ...]) -> list[Pass]:
        return [step for step in passes if step.name != left_out]

    module = axograph.parallelize(
        task.model,
        grid,
        scheme=task.options.get("scheme"),
        cost_model=GlooModel.of(task.link_bytes_per_s, task.flops_per_s, task.ranks_per_host),
        pipeline=pipeline,
    )
    optimizer = make_optimizer(module.parameters(), task.optimizer)

    def step(batch: Batch) -> torch.Tensor:
        loss = training(module, optimizer, batch)
        if task.rank == 0 and "report" in task.options:
            Path(task.options["report"]).write_text(f"{module.plan}\n{module.report()}\n")
        return loss

    return step
