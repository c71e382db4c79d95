"""Tensor parallelism of torch's DTensor: heads, hidden features of the MLP and the vocabulary are cut.

Option: sp=1 cuts the sequence between the products (sequence parallelism).
"""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.cluster.systems import Batch, Step, Task, training
from benchmarks.cluster.workload import GPT, make_optimizer


def cut(model: GPT, mesh: DeviceMesh, options: dict[str, str]) -> None:
    """Cut the weights of a model over a mesh."""
    sequence = "sp" in options
    between = Shard(1) if sequence else Replicate()
    gathered = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    summed = {"output_layouts": between, "use_local_output": not sequence}
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), **summed),
        "blocks.*.attention": gathered,
        "blocks.*.attention.qkv": ColwiseParallel(),
        "blocks.*.attention.out": RowwiseParallel(**summed),
        "blocks.*.mlp": gathered,
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(**summed),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        plan |= {"blocks.*.norm1": SequenceParallel(), "blocks.*.norm2": SequenceParallel(), "norm": SequenceParallel()}
        model.positions = nn.Parameter(distribute_tensor(model.positions.detach(), mesh, [Shard(0)]))
    parallelize_module(model, mesh, plan)


def build(task: Task) -> Step:
    """Every rank sees the whole batch and computes with its part of each weight."""
    cut(task.model, init_device_mesh("cpu", (task.ranks,)), task.options)
    optimizer = make_optimizer(task.model.parameters(), task.optimizer)

    def step(batch: Batch) -> torch.Tensor:
        with loss_parallel():
            return training(task.model, optimizer, batch)

    return step
