"""Inductor for what lies between collectives: stretches of a graph become compiled functions, identical ones once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from axograph.capture.program import facts
from axograph.errors import AxographError, UnsupportedError
from axograph.runtime.stretches import Stretch, call, picks_beside_operators, stretches
from axograph.torch_private import compile_graph, fake_tensor_mode, missing_compiler

Compute = Callable[[list[Any]], Sequence[Any]]
"""Takes its inputs in a list, which it empties."""


class Inductor:
    """Compiles the stretches of graphs."""

    def __init__(self, device: torch.device) -> None:
        missing = missing_compiler(device)
        if missing is not None:
            raise AxographError(
                "compile=True needs a compiler that is not there",
                asked="parallelize(..., compile=True)",
                given=missing,
                rule="Inductor writes C++ for CPUs and Triton for GPUs, and compiles it on this machine",
                remedy="install g++ or clang (CXX names another), or Triton for a GPU; or compile=False",
            )
        self.device = device
        self._fake = fake_tensor_mode()
        self._made: dict[Any, tuple[Compute, list[torch.Tensor]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy compiles for itself."""
        return Inductor, (self.device,)

    def __call__(self, graph: fx.Graph) -> fx.Graph:
        """A copy of the graph that calls compiled functions where there were stretches."""
        ordered = picks_beside_operators(graph)
        found = list(stretches(ordered))
        ends = {stretch.nodes[-1]: stretch for stretch in found}
        inside = {node for stretch in found for node in stretch.nodes}
        calling = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        values: dict[fx.Node, Any] = {}
        for node in ordered.nodes:
            if node in ends:
                stretch = ends[node]
                given = [values[n] for n in stretch.inputs]
                run, results = self._compiled(stretch, given)
                made.update(call(calling, stretch, _restriding(run, given), made))
                values.update(zip(stretch.outputs, results, strict=True))
            elif node not in inside:
                made[node] = calling.node_copy(node, made.__getitem__)
                values[node] = self._value(node, values)
        return calling

    def _value(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """A fake of the value of a node that is not compiled."""
        if node.op == "placeholder":
            return self._dense(node.meta["val"])
        if node.op == "output":
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        with self._fake:
            target: Any = node.target
            return target(*args, **kwargs)

    def _dense(self, value: torch.Tensor) -> torch.Tensor:
        """A fake tensor in the layout of a placeholder's values, or contiguous where that leaves gaps or overlaps."""
        device = self.device if value.device.type == "meta" else value.device
        with self._fake:
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
            dense = torch.ops.aten.is_non_overlapping_and_dense.default(made)
            return made if dense else torch.empty(value.shape, dtype=value.dtype, device=device)

    def _compiled(self, stretch: Stretch, given: Sequence[torch.Tensor]) -> tuple[Compute, list[torch.Tensor]]:
        """The function of a stretch for inputs like these, and what its outputs are like."""
        key = (stretch.key(), tuple((t.shape, t.stride(), t.dtype, t.device) for t in given))
        if key not in self._made:
            try:
                self._made[key] = compile_graph(stretch.graph(), given, self._fake)
            except Exception as error:
                raise _refused(stretch, error) from error
        return self._made[key]


def _restriding(run: Compute, like: Sequence[torch.Tensor]) -> Compute:
    """The function for inputs of any layout: it is compiled for these."""
    layouts = [(tuple(t.shape), t.stride()) for t in like]

    def restrided(values: list[Any]) -> Sequence[Any]:
        for i, (shape, stride) in enumerate(layouts):
            if values[i].stride() != stride and _differ(shape, values[i].stride(), stride):
                values[i] = values[i].new_empty_strided(shape, stride).copy_(values[i])
        return run(values)

    return restrided


def _differ(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether strides lead to different places: those of dims of size 1 lead nowhere."""
    return any(size != 1 and a != b for size, a, b in zip(shape, one, other, strict=True))


def _refused(stretch: Stretch, error: Exception) -> UnsupportedError:
    paths = list(dict.fromkeys(facts(node).path for node in stretch.nodes if facts(node).path))
    return UnsupportedError(
        f"Inductor does not compile {' to '.join(dict.fromkeys((paths[0], paths[-1]))) if paths else 'a stretch'}",
        asked="parallelize(..., compile=True)",
        given=f"{len(stretch.nodes)} operators, from {stretch.nodes[0].name} to {stretch.nodes[-1].name}: {error}",
        rule="every stretch between two collectives is compiled",
        remedy="compile=False",
    )
