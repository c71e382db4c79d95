"""Split programs to schedule, and a cost model that makes their collectives as dear as their products."""

from __future__ import annotations

from functools import cache

import torch

import axograph
from axograph.capture.program import Program
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks
from tests.zoo import GPT

GRID = Grid(2, 2, 2, 2)
MODEL = RingModel()


@cache
def split(scheme: str | None = "axonn", features: int = 4096) -> Program:
    """Both halves of a GPT of two layers on a grid that cuts with all axes, on meta tensors."""
    length = features // 2
    with torch.device("meta"):
        model = GPT(features=features, heads=16, layers=2, length=length).to(torch.bfloat16)
        tokens = torch.empty(16, length, dtype=torch.int64)
    module = axograph.parallelize(
        model, (2, 2, 2, 2), scheme=scheme, sample_inputs={"input_ids": tokens, "labels": tokens}
    )
    return module.stages["split"].program


def backward(scheme: str | None = "axonn", features: int = 4096) -> Program:
    half = split(scheme, features).backward
    assert half is not None
    return half


def tasks_of(program: Program) -> tuple[Tasks, Lifetimes]:
    tasks = Tasks(program, GRID, MODEL)
    return tasks, Lifetimes(tasks)
