"""A bound, not a system: each rank trains on its part of the batch and tells nobody. Its losses are its own."""

from benchmarks.cluster.systems import Step, Task, training
from benchmarks.cluster.workload import make_optimizer, share


def build(task: Task) -> Step:
    """The plain step on a part of the batch; with one rank, on all of it: the reference for losses."""
    optimizer = make_optimizer(task.model.parameters(), task.optimizer)
    return lambda batch: training(task.model, optimizer, share(batch, task.rank, task.ranks))
