"""FSDP2 of torch between hosts over DTensor's tensor parallelism in each; cross=1 the other way round.

Other options are those of fsdp2 and tensor_parallel.
"""

import torch
from torch.distributed.tensor.parallel import loss_parallel

from benchmarks.cluster.systems import Batch, Step, Task, host_mesh, training
from benchmarks.cluster.systems.fsdp2 import shard
from benchmarks.cluster.systems.tensor_parallel import cut
from benchmarks.cluster.workload import make_optimizer, share


def build(task: Task) -> Step:
    """The batch is cut over the outer dim of a mesh of two, weights over both."""
    mesh = host_mesh(task, ("fsdp", "tp"))
    cut(task.model, mesh["tp"], task.options)
    shard(task.model, mesh["fsdp"], task.options)
    optimizer = make_optimizer(task.model.parameters(), task.optimizer)
    index, parts = mesh["fsdp"].get_local_rank(), mesh["fsdp"].size()

    def step(batch: Batch) -> torch.Tensor:
        with loss_parallel():
            return training(task.model, optimizer, share(batch, index, parts))

    return step
