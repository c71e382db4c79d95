"""The program: a graph with a typed table of its inputs and outputs, and our facts on each of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx

from axograph.capture.structure import Structure
from axograph.cost_model.protocol import Collective
from axograph.placement import Placement
from axograph.plan import Plan

InputKind = Literal["parameter", "buffer", "user", "tangent", "coordinate", "constant", "random", "saved"]
OutputKind = Literal["user", "gradient", "buffer", "mutation", "saved"]

FACTS = "axograph"
"""The one key of `node.meta` under which our facts lie."""

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "b8",
}
"""Element types as placements print them."""


def tensor_text(tensor: torch.Tensor) -> str:
    """The type of a tensor, as printed.

    >>> tensor_text(torch.ones(2, 3))
    'f32[2, 3]'
    """
    return f"{DTYPE_NAMES.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One placeholder of the graph, in order."""

    kind: InputKind
    target: str | int
    """The name of a parameter, buffer, constant or axis; "key" for the key of random numbers; the index of a user
    input, of a tangent's output, or of a saved value."""
    requires_grad: bool = False
    placement: Placement | None = None
    """Where the tensor lies; None before the sharding pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One value that the graph returns, in order."""

    kind: OutputKind
    target: str | int
    """The index of a user output; the name of a buffer; for a gradient, the parameter's name or the input's index."""
    placement: Placement | None = None
    """Where the value must lie; None before the sharding pass."""
    through: frozenset[int] = frozenset()
    """For a gradient of a split program: the user outputs through which a loss reaches it. Later passes join values, so
    that graphs no longer tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What we know of a node."""

    path: str = ""
    """The module that the node came from, such as "layers.0.mlp.up_proj"."""
    source: str = ""
    """The line of the model, as "file.py:12, y = self.up(x)"."""
    phase: Literal["forward", "backward"] = "forward"
    forward: str | None = None
    """For a backward node: the name of the forward node whose derivative it is."""
    checkpoint: int | None = None
    """Which of the model's calls of `torch.utils.checkpoint.checkpoint` the node lies in, counted from 0."""
    placements: tuple[Placement | None, ...] = ()
    """Where each output lies for those who use it; empty before the sharding pass, None for what is no tensor."""
    strategy: object = None
    """How the sharding pass runs the node on the grid."""
    collective: Collective | None = None
    """What a communication node moves."""
    reason: str = ""
    """Why the node is here, where a pass inserted it."""
    chunk: int | None = None
    """The chunk of the batch that the node works on, from 0; None for the whole batch."""
    exposed: object = None
    """For the start of a collective that computing does not hide: for how long, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A graph module of aten operators, and what its placeholders and outputs are."""

    graph_module: fx.GraphModule
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    input_structure: Structure
    output_structure: Structure
    constants: dict[str, torch.Tensor]
    """Tensors that the model made while it was captured, by name."""
    differentiable: tuple[int, ...] = ()
    """Indices of the user outputs whose gradients the backward half takes."""
    plan: Plan | None = None
    """What the sharding pass decided."""
    backward: Program | None = None
    """The backward half, once the program is split."""

    @property
    def graph(self) -> fx.Graph:
        """The graph itself."""
        return self.graph_module.graph

    def halves(self) -> tuple[Program, ...]:
        """This program, and the backward half if there is one."""
        return (self,) if self.backward is None else (self, self.backward)

    def placeholders(self) -> list[fx.Node]:
        """The input nodes, in the order of `inputs`."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def results(self) -> list[fx.Node | None]:
        """The output values, in the order of `outputs`."""
        output = next(node for node in reversed(self.graph.nodes) if node.op == "output")
        return list(output.args[0])


def facts(node: fx.Node) -> Facts:
    """Our facts on a node; the empty ones where there are none yet."""
    found = node.meta.get(FACTS)
    return found if isinstance(found, Facts) else Facts()


def note(node: fx.Node, **changes: Any) -> None:
    """Record facts on a node, keeping the others."""
    node.meta[FACTS] = replace(facts(node), **changes)


def values(node: fx.Node) -> tuple[torch.Tensor, ...]:
    """The (fake) tensors that a node produces."""
    produced = node.meta.get("val")
    if isinstance(produced, torch.Tensor):
        return (produced,)
    if isinstance(produced, list | tuple):
        return tuple(value for value in produced if isinstance(value, torch.Tensor))
    return ()


def value(node: fx.Node) -> torch.Tensor:
    """The one (fake) tensor that a node produces."""
    (produced,) = values(node)
    return produced


def size_bytes(node: fx.Node) -> int:
    """The bytes of the (fake) tensors that a node produces."""
    return sum(tensor.numel() * tensor.element_size() for tensor in values(node))
