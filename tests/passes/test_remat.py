"""Recomputation: what is saved for backward, what is made again, and that numbers stay as they are."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import axograph
from axograph.capture.program import Program
from axograph.cost_model import RingModel
from axograph.grid import Grid
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.scheduling.verify import collectives
from tests.zoo import BY_NAME, double_everywhere, loss_of

Shape = tuple[int, int, int, int]


def compiled(model: nn.Module, grid: Shape, inputs: Any, **options: Any) -> Any:
    """The module, compiled for these inputs."""
    return axograph.parallelize(model, grid, sample_inputs=inputs, **options)


def saved_of(program: Program) -> list[str]:
    """What forward saves: the operator, and the shape on one rank."""
    pairs = zip(program.results(), program.outputs, strict=True)
    saved = [node for node, declared in pairs if declared.kind == "saved"]
    return [f"{_name(node)} {list(node.meta['val'].shape)}" for node in saved if node is not None]


def _name(node: torch.fx.Node) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def ran(program: Program | None) -> Counter[str]:
    """How often each operator runs."""
    assert program is not None
    return Counter(_name(node) for node in program.graph.nodes if node.op == "call_function")


def peak_bytes(program: Program | None, grid: Shape) -> int:
    assert program is not None
    return Lifetimes(Tasks(program, Grid.of(grid), RingModel())).peak(list(program.graph.nodes))


def moved(program: Program | None) -> int:
    assert program is not None
    return len(collectives(program.graph))


class Block(nn.Module):
    """A block of which 16 + 16 hidden features are saved beside its input of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 16, bias=False)
        self.down = nn.Linear(16, 4, bias=False)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.down(torch.tanh(self.up(x)).sin())


class Stack(nn.Module):
    def __init__(self, wrap: Callable[..., Any] | None = None, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.wrap = wrap if wrap is not None else lambda f, *args: f(*args)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.wrap(layer, x)
        return x.square().sum()


X = (torch.ones(8, 4),)


def test_blocks_save_their_inputs_alone() -> None:
    plain = compiled(Stack(), (1, 1, 1, 1), X).stages["split"].program
    block = compiled(Stack(), (1, 1, 1, 1), X, remat="block").stages["split"].program
    assert saved_of(plain) == [
        "tanh [8, 16]", "sin [8, 16]", "add [8, 4]", "tanh [8, 16]", "sin [8, 16]", "add [8, 4]",
        "tanh [8, 16]", "sin [8, 16]", "add [8, 4]",
    ]  # fmt: skip
    assert saved_of(block) == ["add [8, 4]", "add [8, 4]", "add [8, 4]"]
    again = ran(block.backward) - ran(plain.backward)
    assert again == {"mm": 3, "tanh": 3, "sin": 3, "permute": 3}  # the second product of a block is not needed


@pytest.mark.parametrize("remat", ["block", "auto"])
@pytest.mark.parametrize(("name", "grid"), [("gpt", (2, 1, 2, 1)), ("llama", (1, 2, 1, 2)), ("mlp", (2, 2, 1, 1))])
def test_numbers_are_those_of_the_model(name: str, grid: Shape, remat: Any) -> None:
    with double_everywhere():
        case = BY_NAME[name]
        model, inputs = case.model().double(), case.inputs()
        inputs = {key: t.double() if t.is_floating_point() else t for key, t in inputs.items()}
        original = copy.deepcopy(model)
        options: dict[str, Any] = {"remat": remat}
        if remat == "auto":
            free = compiled(copy.deepcopy(model), grid, inputs).plan.memory
            options["memory_bytes"] = free.total - 0.3 * free.saved
        module = compiled(model, grid, inputs, **options)
        for run in (module, original):
            loss_of(run(**inputs)).backward()
        for ours, theirs in zip(module.parameters(), original.parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-9)
