"""One file for each system: `build(task) -> step`, and `step(batch)` trains on a global batch and returns the loss.

A system is asked for as `name:option=value,...`; its file reads its options from `task.options`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.cluster.gloo_model import Figures
from benchmarks.cluster.workload import GPT

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a system is told."""

    model: GPT
    rank: int
    ranks: int
    ranks_per_host: int
    options: dict[str, str]
    optimizer: str
    link_bytes_per_s: float
    figures: Figures
    simulated: dict[str, float] = field(default_factory=dict)
    """What a system has been told by a simulator: `simulated_s` of a step, and `simulated_exposed_s`."""


def parse(text: str) -> tuple[str, dict[str, str]]:
    """The name of a system and its options."""
    name, _, options = text.partition(":")
    pairs = (option.partition("=") for option in options.split(",") if option)
    return name, {key: value or "1" for key, _, value in pairs}


def build(name: str, task: Task) -> Step:
    """The step of the system of this name."""
    step: Step = importlib.import_module(f"benchmarks.cluster.systems.{name}").build(task)
    return step


def host_mesh(task: Task, names: tuple[str, str]) -> DeviceMesh:
    """Hosts by the ranks of each, or with option `cross`, the other way round."""
    ranks = torch.arange(task.ranks).view(-1, task.ranks_per_host)
    return DeviceMesh("cpu", ranks.t() if "cross" in task.options else ranks, mesh_dim_names=names)


def training(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor] | Batch
) -> torch.Tensor:
    """One step of training."""
    loss: torch.Tensor = model(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
