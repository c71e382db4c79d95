"""What must hold of every graph whose collectives run while it computes; and a training that is watched closely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.distributed.tensor import DTensor

from axograph.capture.program import Program, facts
from axograph.codegen.module import ParallelModule
from axograph.passes.dataflow import is_view
from axograph.pipeline import Pass
from axograph.runtime.boxed import boxed
from axograph.torch_private import collective_op, local_tensor

Issued = list[tuple[str, str, tuple[int, ...], str]]


def latest(module: ParallelModule) -> Program:
    """The program that the latest call runs."""
    return list(module.stages.values())[-1].program


def halves(module: ParallelModule) -> list[fx.Graph]:
    """The graphs of forward and backward."""
    program = latest(module)
    return [program.graph, *([program.backward.graph] if program.backward is not None else [])]


def issued(module: ParallelModule) -> Issued:
    """(operator, axes, local shape, type) of each collective, in the order in which every rank starts them."""
    starts = [node for graph in halves(module) for node in graph.nodes if facts(node).collective is not None]
    made = [(start, facts(start).collective, start.meta["val"]) for start in starts]
    return [(str(n.target), ".".join(c.axes), tuple(val.shape), str(val.dtype)) for n, c, val in made]


def apart(standard: Sequence[Pass]) -> Sequence[Pass]:
    """The passes, without the one that joins small collectives: so both ways have the same ones."""
    return [step for step in standard if step.name != "bucket"]


def assert_safe(graph: fx.Graph) -> None:
    """Each collective has one wait, nothing sees its result before, and its memory is its own for so long.

    Looks at what runs: the graph from which a process generates its code.
    """
    run = boxed(graph).__self__.graph  # type: ignore[attr-defined]
    at = {node: position for position, node in enumerate(run.nodes)}
    pairs = []
    for start in run.nodes:
        if facts(start).collective is not None:
            (wait,) = start.users  # a view would be another user
            assert wait.name.startswith("wait")
            if start.target is not collective_op("all_reduce"):  # that one works on a copy
                assert all(max(at[user] for user in sent.users) >= at[wait] for sent in start.all_input_nodes)
            pairs.append((start, wait))
    memory = _memory(run)
    for node in filter(_writes, run.nodes):
        busy = [n for start, wait in pairs if at[start] < at[node] < at[wait] for n in (start, *start.all_input_nodes)]
        assert memory[node.all_input_nodes[0]] not in {memory[n] for n in busy}, f"{node} writes what is under way"


def _writes(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_")
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)  # of functions, only operators may


def _memory(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node, the first that lay where it lies, or may lie."""
    methods = {"reshape", "permute", "expand", "narrow", "contiguous"}
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        looks = node.target in methods or _writes(node)
        looks = looks or (node.op == "call_function" and (is_view(node) or node.name.startswith("wait")))
        found[node] = found[node.all_input_nodes[0]] if looks else node
    return found


class Tied(nn.Module):
    """Tokens to a loss: one table for both ends, and a block passed twice, with tensors that die soon."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 24, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = self.table(tokens)
        for _ in range(2):
            h = h + torch.tanh(self.down(F.gelu(self.up(self.norm(h))) * 0.9) * 1.1) * 0.5
        return F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


class Branches(nn.Module):
    """Four layers side by side in a table of no order, between an embedding and a head of a prime number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(13, 8), nn.Linear(8, 13)
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleDict({name: nn.Linear(8, 8) for name in "zbxa"})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(tokens))
        parts = {name: torch.tanh(layer(x)) for name, layer in self.layers.items()}
        halves = (sum(parts.values()) + x).to(torch.float32)  # a cast, then views, come first after a collective
        return self.head(halves.view(-1, 2, 4).transpose(0, 1).reshape(*x.shape).to(torch.float64))


def watched(
    module: nn.Module, inputs: Sequence[torch.Tensor], steps: int, pause: Callable[[], Any] = lambda: None
) -> list[torch.Tensor]:
    """Everything seen of some steps of training, by hooks and after them: losses, gradients, parameters.

    Asserts that whoever looks at a gradient sees the finished one. On process groups these are a rank's parts.
    """
    seen: list[torch.Tensor] = []
    hooked: dict[str, torch.Tensor] = {}
    early: list[tuple[str, torch.Tensor]] = []
    named = dict(module.named_parameters())

    def look(_: torch.Tensor) -> None:  # at its own gradient, and early at the others
        early.extend((name, _local(p.grad).clone()) for name, p in named.items() if p.grad is not None)

    for name, parameter in named.items():
        parameter.register_hook(lambda gradient, name=name: hooked.update({name: _local(gradient).clone()}))
        parameter.register_post_accumulate_grad_hook(look)
    optimizer = torch.optim.AdamW(named.values(), 1e-2, eps=1e-4)
    for _ in range(steps):
        pause()
        optimizer.zero_grad()
        early.clear()
        loss = module(*inputs)
        loss.backward()
        assert len(early) == len(named) * (len(named) + 1) // 2
        final = {name: _local(parameter.grad).clone() for name, parameter in named.items()}
        assert all(torch.equal(gradient, final[name]) for name, gradient in (*early, *hooked.items()))
        seen += [loss.detach(), *final.values()]
        optimizer.step()
    return [*seen, *(_local(parameter.detach()) for parameter in named.values())]


def _local(tensor: Any) -> torch.Tensor:
    return local_tensor(tensor) if isinstance(tensor, DTensor) else tensor
