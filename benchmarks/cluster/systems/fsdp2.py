"""FSDP2 of torch, each block a unit. Options: keep=1 keeps gathered weights until backward.

prefetch=1 gathers units one ahead (CPUs have no streams: they wait for it even so).
"""

from itertools import pairwise

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from benchmarks.cluster.systems import Step, Task, training
from benchmarks.cluster.workload import GPT, make_optimizer, share


def shard(model: GPT, mesh: DeviceMesh, options: dict[str, str]) -> None:
    """Cut the weights of a model over a mesh; over the second of two dims, with copies over the first."""
    units = [*model.blocks, model]
    for module in units:
        fully_shard(module, mesh=mesh, reshard_after_forward="keep" not in options)
    if "prefetch" in options:
        blocks = [block for block in model.blocks if isinstance(block, FSDPModule)]
        assert isinstance(model, FSDPModule)
        model.set_modules_to_forward_prefetch(blocks[:1])
        for before, after in pairwise(blocks):
            before.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([before])


def build(task: Task) -> Step:
    """Weights cut over all ranks and gathered unit by unit."""
    shard(task.model, init_device_mesh("cpu", (task.ranks,)), task.options)
    optimizer = make_optimizer(task.model.parameters(), task.optimizer)
    return lambda batch: training(task.model, optimizer, share(batch, task.rank, task.ranks))
