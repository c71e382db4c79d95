"""The virtual grid: all ranks at once in this process.

The program is the same for all ranks, so every value is stacked, `[ranks, *local shape]`: operators run under
`torch.vmap`, and collectives are sums and reshapes over the grid's dims. Nothing is taken for granted about copies:
each rank's are computed from that rank's own values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from axograph.capture.program import Program
from axograph.grid import CUT_ORDER, Grid
from axograph.placement import Placement
from axograph.runtime.parts import join_parts, stack_parts
from axograph.torch_private import collective_op, quiet_vmap


@dataclass(frozen=True, slots=True)
class _Stacked:
    """A value of all ranks; one that is the same for all by construction is kept as a plain tensor."""

    tensor: torch.Tensor


class VirtualGrid:
    """Runs programs for all ranks of a grid. The user's tensors, parameters included, are ordinary and global."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.sizes = [grid[axis] for axis in CUT_ORDER]
        self.collectives: dict[Any, Callable[..., torch.Tensor]] = {
            collective_op("all_reduce"): self._all_reduce,
            collective_op("all_gather_into_tensor"): self._all_gather,
            collective_op("reduce_scatter_tensor"): self._reduce_scatter,
            collective_op("all_to_all_single"): self._all_to_all,
            collective_op("wait_tensor"): lambda x: x,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return VirtualGrid, (self.grid,)

    def take_over(self, model: nn.Module) -> None:
        """Nothing to do."""

    def adopt(self, model: nn.Module, placements: Mapping[str, Placement]) -> None:
        """Parameters stay as they are: each call takes its parts from them."""

    def loadable(self, model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state itself."""
        return state

    def agree(self, program: Program, inputs: Sequence[torch.Tensor]) -> None:
        """One process always agrees with itself."""

    def together(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    @property
    def once(self) -> None:
        """There is one process."""

    def bind(self, module: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
        """Run the graph on stacked values."""

        def run(inputs: list[Any]) -> Sequence[Any]:
            return self.run(module, inputs)

        return run

    def returned(self, value: torch.Tensor, placement: Placement) -> torch.Tensor:
        """The global tensor of a result."""
        return self.gather(value, placement)

    def gradient(self, value: torch.Tensor, placement: Placement, of: torch.Tensor) -> torch.Tensor:
        """The global gradient."""
        return self.gather(value, placement)

    def place(self, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
        """The stacked parts of a global tensor, `[ranks, *local shape]`."""
        return stack_parts(tensor, placement, self.grid).flatten(0, len(CUT_ORDER) - 1)

    def gather(self, stacked: torch.Tensor, placement: Placement) -> torch.Tensor:
        """The global tensor from its stacked parts."""
        return join_parts(self._spread(stacked), placement, self.grid)

    def coordinate(self, axis: str) -> torch.Tensor:
        """Every rank's position along an axis, `[ranks]`."""
        shape = [size if name == axis else 1 for name, size in zip(CUT_ORDER, self.sizes, strict=True)]
        return torch.arange(self.grid[axis]).reshape(shape).expand(self.sizes).reshape(-1)

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself: there is one process."""
        return tensor

    def run(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The stacked results of a program for stacked inputs."""
        values: dict[fx.Node, Any] = {}
        last = _last_uses(module.graph)
        given = iter(inputs)
        results: list[torch.Tensor | None] = []
        with quiet_vmap():
            for node in module.graph.nodes:
                if node.op == "placeholder":
                    values[node] = _Stacked(next(given))
                elif node.op == "call_function":
                    values[node] = self._call(node, values)
                elif node.op == "output":
                    returned: Any = node.args[0]
                    results = [None if r is None else self._stacked(values[r]) for r in returned]
                for used in last.get(node, ()):
                    del values[used]
        return results

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.target is operator.getitem:
            values_made: Any = args[0]
            return values_made[args[1]]
        collective = self.collectives.get(node.target)
        if collective is not None:
            return _Stacked(collective(self._stacked(args[0]), *args[1:]))
        if node.target in _BATCHED:
            args, kwargs = _map((args, kwargs), self._as_stacked)
        return _vectorized(node.target, args, kwargs)

    def _as_stacked(self, value: Any) -> Any:
        return _Stacked(self._stacked(value)) if isinstance(value, torch.Tensor) else value

    def _stacked(self, value: Any) -> torch.Tensor:
        if isinstance(value, _Stacked):
            return value.tensor
        tensor: torch.Tensor = value
        return tensor.expand(self.grid.size, *tensor.shape)

    def _spread(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*self.sizes, *x.shape[1:])

    def _joined(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(0, len(CUT_ORDER) - 1)

    def _all_reduce(self, x: torch.Tensor, kind: str, group: str) -> torch.Tensor:
        spread = self._spread(x)
        dims = [CUT_ORDER.index(axis) for axis in group.split(".")]
        reduced = spread.sum(dims, keepdim=True) if kind == "sum" else spread.amax(dims, keepdim=True)
        return self._joined(reduced.to(x.dtype).expand(spread.shape))

    def _all_gather(self, x: torch.Tensor, count: int, group: str) -> torch.Tensor:
        dim = CUT_ORDER.index(group)
        spread = self._spread(x)
        moved = spread.movedim(dim, len(CUT_ORDER) - 1)
        whole = moved.flatten(len(CUT_ORDER) - 1, len(CUT_ORDER))
        sizes = list(whole.shape)
        sizes.insert(dim, count)
        return self._joined(whole.unsqueeze(dim).expand(sizes))

    def _reduce_scatter(self, x: torch.Tensor, kind: str, count: int, group: str) -> torch.Tensor:
        dim = CUT_ORDER.index(group)
        summed = self._spread(x).sum(dim)
        parts = summed.reshape(*summed.shape[: len(CUT_ORDER) - 1], count, -1, *summed.shape[len(CUT_ORDER) :])
        return self._joined(parts.movedim(len(CUT_ORDER) - 1, dim).contiguous())

    def _all_to_all(self, x: torch.Tensor, sent: list[int], received: list[int], group: str) -> torch.Tensor:
        dim = CUT_ORDER.index(group)
        return self._joined(self._spread(x).transpose(dim, len(CUT_ORDER)).contiguous())


def _vectorized(target: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator for all ranks. What no rank's value goes into is the same for all, and is run once."""
    stacked: list[torch.Tensor] = []

    def slot(value: Any) -> Any:
        if isinstance(value, _Stacked):
            stacked.append(value.tensor)
            return _Slot(len(stacked) - 1)
        return value

    slots = _map((args, kwargs), slot)
    if not stacked:
        return target(*args, **kwargs)

    def run(*tensors: torch.Tensor) -> Any:
        real_args, real_kwargs = _map(slots, lambda s: tensors[s.index] if isinstance(s, _Slot) else s)
        return target(*real_args, **real_kwargs)

    return _wrapped(_folded(run, stacked) if target in _BATCHED else _mapped(run, stacked))


def _mapped(run: Callable[..., Any], stacked: list[torch.Tensor]) -> Any:
    """Run an operator under `vmap`; results that are no tensors (gradients not wanted) are put back afterwards.

    The few that `vmap` does not know run rank by rank.
    """
    made: list[Any] = []

    def tensors_only(*tensors: torch.Tensor) -> Any:
        result = run(*tensors)
        made[:] = result if isinstance(result, list | tuple) else [result]
        return tuple(item for item in made if isinstance(item, torch.Tensor))

    try:
        found = iter(torch.vmap(tensors_only)(*stacked))
    except RuntimeError as error:
        if "batching rule" not in str(error).lower():
            raise
        each = [tensors_only(*parts) for parts in zip(*stacked, strict=True)]
        found = iter([torch.stack(parts) for parts in zip(*each, strict=True)])
    results = [next(found) if isinstance(item, torch.Tensor) else item for item in made]
    return results if len(results) > 1 else results[0]


_BATCHED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
"""Operators whose first dim is a batch of independent problems, and which `vmap` would run in a loop."""


def _folded(run: Callable[..., Any], stacked: list[torch.Tensor]) -> Any:
    """Run an operator once, with the ranks in its batch dim. A batch of 1 (of a mask) is repeated first."""
    ranks = stacked[0].shape[0]
    batch = max(tensor.shape[1] for tensor in stacked)
    whole = [tensor.expand(ranks, batch, *tensor.shape[2:]).flatten(0, 1) for tensor in stacked]
    return _map(run(*whole), lambda made: made.unflatten(0, (ranks, batch)))


@dataclass(frozen=True, slots=True)
class _Slot:
    index: int


def _wrapped(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return _Stacked(result)
    return [_wrapped(item) for item in result] if isinstance(result, list | tuple) else result


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_map(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return change(value)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the values that nothing after it needs."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        if node.op != "output":
            found.setdefault(node, []).append(used)
    return found
