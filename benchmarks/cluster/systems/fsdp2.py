"""FSDP2 of torch, each block a unit. Option: keep=1 keeps gathered weights until backward."""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.cluster.systems import Step, Task, training
from benchmarks.cluster.workload import make_optimizer, share


def build(task: Task) -> Step:
    """Weights cut over all ranks and gathered unit by unit."""
    mesh = init_device_mesh("cpu", (task.ranks,))
    for module in (*task.model.blocks, task.model):
        fully_shard(module, mesh=mesh, reshard_after_forward="keep" not in task.options)
    optimizer = make_optimizer(task.model.parameters(), task.optimizer)
    return lambda batch: training(task.model, optimizer, share(batch, task.rank, task.ranks))
