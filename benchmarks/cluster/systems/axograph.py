"""AxoGraph. Options: grid=1x1x1x2 (x, y, z, data), scheme (searched if none), schedule=0 leaves that pass out.

order=z.x.y.data names the axes with those of neighbouring ranks first (x.y.z.data).
report=FILE writes the plan and what the simulator says of the step. Others are those of `parallelize`: chunks=2,
overlap=0, remat=block, compile=1.
"""

from pathlib import Path
from typing import Any

import torch

import axograph
from axograph.grid import Grid
from axograph.pipeline import Pass
from benchmarks.cluster.gloo_model import GlooModel
from benchmarks.cluster.systems import Batch, Step, Task, training
from benchmarks.cluster.workload import make_optimizer

SWITCHES = {"overlap", "compile"}
OWN = {"grid", "order", "schedule", "report"}


def keywords(options: dict[str, str]) -> dict[str, Any]:
    """The arguments of `parallelize` among a system's options."""
    given = {name: text for name, text in options.items() if name not in OWN}
    return {
        name: text != "0" if name in SWITCHES else int(text) if text.isdecimal() else text
        for name, text in given.items()
    }


def build(task: Task) -> Step:
    """The model compiled for the grid, under a cost model of this box."""
    sizes = (int(size) for size in task.options.get("grid", f"1x1x1x{task.ranks}").split("x"))
    grid = Grid(*sizes, order=tuple(task.options.get("order", "x.y.z.data").split(".")))
    left_out = "schedule" if task.options.get("schedule") == "0" else None

    def pipeline(passes: tuple[Pass, ...]) -> list[Pass]:
        return [step for step in passes if step.name != left_out]

    module = axograph.parallelize(
        task.model,
        grid,
        cost_model=GlooModel(task.link_bytes_per_s, task.ranks_per_host, task.figures),
        pipeline=pipeline,
        **keywords(task.options),
    )
    optimizer = make_optimizer(module.parameters(), task.optimizer)

    def step(batch: Batch) -> torch.Tensor:
        loss = training(module, optimizer, batch)
        if not task.simulated:
            report = module.report()
            task.simulated.update(simulated_s=report.time_s, simulated_exposed_s=report.exposed_s)
            if task.rank == 0 and "report" in task.options:
                Path(task.options["report"]).write_text(f"{module.plan}\n{report}\n")
        return loss

    return step
