"""The grid on real process groups: one rank a process, parameters as DTensors, collectives of `torch.distributed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from axograph.capture.program import Program
from axograph.errors import GridError
from axograph.grid import CUT_ORDER, Grid
from axograph.placement import Placement
from axograph.runtime.agreement import agree, made_once, shared_failure
from axograph.runtime.boxed import Boxed, boxed
from axograph.runtime.engine import Once
from axograph.runtime.exchange import Exchange, over_gloo, wait
from axograph.runtime.inductor import Inductor
from axograph.runtime.parts import local_part, padded, trimmed
from axograph.torch_private import collective_op, local_tensor, move_shard, strided_shard

_GROUP_ARGUMENT = {"all_reduce": 2, "all_gather_into_tensor": 2, "reduce_scatter_tensor": 3, "all_to_all_single": 3}
"""Where each collective takes its group."""


class ProcessGrid:
    """Runs this rank's part of programs on the default process group."""

    def __init__(self, grid: Grid, device: torch.device, inductor: Inductor | None = None) -> None:
        world = dist.get_world_size()
        if world != grid.size:
            raise GridError(
                f"the grid has {grid.size} ranks and the process group {world}",
                asked=f"grid {grid}",
                given=f"a process group of {world} ranks",
                rule="x * y * z * data is the number of processes",
                remedy=f"torchrun --nproc-per-node {grid.size}, or a grid of {world} ranks",
            )
        self.grid = grid
        self.device = device
        self.inductor = inductor
        self.rank = dist.get_rank()
        self.position = grid.coordinate(self.rank)
        self.axes = grid.cut_axes or CUT_ORDER[:1]
        """The dims of the mesh. Axes of one rank are left out: DTensor's work grows by powers with the dims."""
        ranks = torch.tensor([grid.rank(_position(grid, i)) for i in range(grid.size)])
        shape = [grid[axis] for axis in self.axes]
        self.mesh = DeviceMesh(device.type, ranks.reshape(shape), mesh_dim_names=self.axes)
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._collectives = {collective_op(name): at for name, at in _GROUP_ARGUMENT.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessGrid:
        """A copy of a module runs on the same process groups."""
        return self

    def take_over(self, model: nn.Module) -> None:
        """Make every parameter a DTensor, at first a copy on each rank; parameters and buffers are those of rank 0."""
        made: dict[int, nn.Parameter] = {}
        with torch.no_grad():
            for module in model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is None or isinstance(parameter, DTensor):
                        continue
                    if id(parameter) not in made:
                        whole = self._from_first(parameter.detach().contiguous())
                        wrapped = self._wrap(whole, Placement.whole(whole.shape))
                        made[id(parameter)] = nn.Parameter(wrapped, parameter.requires_grad)
                    module._parameters[name] = made[id(parameter)]
            for buffer in model.buffers():
                self._from_first(buffer)

    def _from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "meta" and tensor.numel():
            dist.broadcast(tensor, src=0)
        return tensor

    def adopt(self, model: nn.Module, placements: Mapping[str, Placement]) -> None:
        """Keep of each parameter this rank's part; the parameter stays the same object."""
        with torch.no_grad():
            for name, placement in placements.items():
                parameter = model.get_parameter(name)
                if parameter.placements != self.placements(placement):  # type: ignore[attr-defined]
                    whole = local_tensor(parameter)
                    part = local_part(whole, placement, self.grid, self.position)
                    move_shard(parameter, self._wrap(part, placement, copy=True))

    def loadable(self, model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Full tensors cut as the parameters of their names are stored."""
        stored = model.state_dict()
        made: dict[str, Any] = {}
        for name, tensor in state.items():
            now = stored.get(name)
            if isinstance(now, DTensor) and isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor):
                made[name] = _cut_like(tensor, now, self.mesh)
            else:
                made[name] = tensor
        return made

    def agree(self, program: Program, inputs: Sequence[torch.Tensor]) -> None:
        """Compare a digest of the program, and of the global inputs, with all ranks."""
        agree(program, inputs)

    def together(self) -> AbstractContextManager[None]:
        """An error on one rank reaches all."""
        return shared_failure()

    @property
    def once(self) -> Once:
        """Rank 0 makes it."""
        return made_once

    def bind(self, module: fx.GraphModule) -> Boxed:
        """Put the names of process groups in the places of the names of axes, and over gloo what is quicker than it."""
        compute = module.graph if self.inductor is None else self.inductor(module.graph)
        graph = fx.Graph()
        graph.output(graph.graph_copy(compute, {}))
        for node in graph.nodes:
            at = self._collectives.get(node.target)
            if at is not None:
                self._bind(node, at)
        return boxed(graph)

    def _bind(self, node: fx.Node, at: int) -> None:
        """Let a collective, whose argument `at` names axes, run on their group."""
        axes, ended = str(node.args[at]), collective_op("wait_tensor")
        group = self._group(axes)
        if over_gloo(group, self.device) and all(user.target is ended for user in node.users):
            if axes not in self._exchanges:
                self._exchanges[axes] = Exchange(group)
            quicker = self._exchanges[axes].instead_of(node.target, node.args)
            if quicker is not None:
                node.target, node.args = quicker, node.args[:at]
                for user in node.users:
                    user.target = wait
                return
        node.args = (*node.args[:at], group.group_name)

    def _group(self, axes: str) -> dist.ProcessGroup:
        """The process group along these axes. All ranks ask for the same groups in the same order."""
        if axes not in self._groups:
            names = axes.split(".")
            if len(names) == 1:
                self._groups[axes] = self.mesh.get_group(axes)
            else:
                mine = self.grid.group(names, self.rank)
                made = [dist.new_group(list(ranks)) for ranks in self.grid.groups(names)]
                own = [g for g, ranks in zip(made, self.grid.groups(names), strict=True) if ranks == mine]
                self._groups[axes] = own[0]
        return self._groups[axes]

    def place(self, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
        """This rank's part of a global tensor, or the shard of a DTensor."""
        if isinstance(tensor, DTensor):
            wanted = self.placements(placement)
            shard = local_tensor(tensor if tensor.placements == wanted else tensor.redistribute(self.mesh, wanted))
            return padded(shard, placement, self.grid)
        return local_part(tensor, placement, self.grid, self.position).contiguous()

    def coordinate(self, axis: str) -> torch.Tensor:
        """This rank's position along an axis."""
        return torch.tensor(self.position[axis], device=self.device)

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of rank 0, in the place of this rank's."""
        return self._from_first(tensor)

    def returned(self, value: torch.Tensor, placement: Placement) -> torch.Tensor:
        """A plain tensor where every rank has the whole, a DTensor otherwise."""
        return self._wrap(value, placement) if placement.axes else value

    def gradient(self, value: torch.Tensor, placement: Placement, of: torch.Tensor) -> torch.Tensor:
        """A DTensor for a parameter, a plain tensor for an input."""
        return self._wrap(value, placement) if isinstance(of, DTensor) else value

    def placements(self, placement: Placement) -> tuple[Any, ...]:
        """The same placement in the terms of DTensor, by dim of the mesh."""
        found: dict[str, Any] = {}
        for dim, subs in enumerate(placement.simplified().dims):
            before = 1
            for sub in subs:
                for axis in sub.axes:
                    found[axis] = Shard(dim) if before == 1 else strided_shard(dim, before)
                before *= sub.size
        return tuple(found.get(axis, Replicate()) for axis in self.axes)

    def _wrap(self, part: torch.Tensor, placement: Placement, copy: bool = False) -> DTensor:
        """A rank's part as a shard: without padding."""
        part = trimmed(part, placement, self.grid, self.position)
        part = part.clone() if copy else part
        shape = torch.Size(placement.shape)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            part, self.mesh, self.placements(placement), run_check=False, shape=shape, stride=stride
        )


def _position(grid: Grid, index: int) -> dict[str, int]:
    """The coordinate of the entry at this flat index of the mesh."""
    position = {}
    for axis in reversed(CUT_ORDER):
        index, position[axis] = divmod(index, grid[axis])
    return position


def _cut_like(tensor: torch.Tensor, like: DTensor, mesh: DeviceMesh) -> DTensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.dtype), mesh, like.placements, src_data_rank=None)
