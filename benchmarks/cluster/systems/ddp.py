"""DistributedDataParallel of torch. Option: bucket, in MB (25)."""

from torch.nn.parallel import DistributedDataParallel

from benchmarks.cluster.systems import Step, Task, training
from benchmarks.cluster.workload import make_optimizer, share


def build(task: Task) -> Step:
    """Gradients all-reduced in buckets while backward runs."""
    bucket_mb = float(task.options.get("bucket", 25))
    module = DistributedDataParallel(task.model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    optimizer = make_optimizer(module.parameters(), task.optimizer)
    return lambda batch: training(module, optimizer, share(batch, task.rank, task.ranks))
