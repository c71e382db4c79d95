"""Tensor parallelism of torch's DTensor: heads, hidden features of the MLP and the vocabulary are cut."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from benchmarks.cluster.systems import Batch, Step, Task, training
from benchmarks.cluster.workload import make_optimizer


def build(task: Task) -> Step:
    """Every rank sees the whole batch and computes with its part of each weight."""
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "blocks.*.attention.qkv": ColwiseParallel(),
        "blocks.*.attention.out": RowwiseParallel(),
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    module = parallelize_module(task.model, init_device_mesh("cpu", (task.ranks,)), plan)
    optimizer = make_optimizer(module.parameters(), task.optimizer)

    def step(batch: Batch) -> torch.Tensor:
        with loss_parallel():
            return training(module, optimizer, batch)

    return step
