"""HSDP of torch: FSDP2 among the ranks of a host, copies on all hosts; cross=1 the other way round.

Other options are those of fsdp2.
"""

from benchmarks.cluster.systems import Step, Task, host_mesh, training
from benchmarks.cluster.systems.fsdp2 import shard
from benchmarks.cluster.workload import make_optimizer, share


def build(task: Task) -> Step:
    """Weights cut over the inner dim of a mesh of two, their gradients all-reduced over the outer."""
    shard(task.model, host_mesh(task, ("copies", "shards")), task.options)
    optimizer = make_optimizer(task.model.parameters(), task.optimizer)
    return lambda batch: training(task.model, optimizer, share(batch, task.rank, task.ranks))
