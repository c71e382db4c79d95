"""DistributedDataParallel of torch. Options: bucket, in MB (25), to be tuned; static=1 says that graphs repeat."""

from torch.nn.parallel import DistributedDataParallel

from benchmarks.cluster.systems import Step, Task, training
from benchmarks.cluster.workload import make_optimizer, share


def build(task: Task) -> Step:
    """Gradients all-reduced in buckets while backward runs."""
    module = DistributedDataParallel(
        task.model,
        bucket_cap_mb=float(task.options.get("bucket", 25)),
        gradient_as_bucket_view=True,
        static_graph="static" in task.options,
    )
    optimizer = make_optimizer(module.parameters(), task.optimizer)
    return lambda batch: training(module, optimizer, share(batch, task.rank, task.ranks))
