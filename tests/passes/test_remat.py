"""Recomputation: what is saved for backward, what is made again, and that numbers stay as they are."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import axograph
from axograph.capture.program import Program, facts, size_bytes
from axograph.capture.trace import capture
from axograph.cost_model import Collective, Compute, RingModel
from axograph.cost_model.memory import readable
from axograph.errors import AxographError, PlanError
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.scheduling.memory import Lifetimes
from axograph.passes.scheduling.tasks import Tasks
from axograph.passes.scheduling.verify import collectives
from axograph.passes.split import Split
from tests import zoo
from tests.zoo import BY_NAME, double_everywhere, loss_of

Shape = tuple[int, int, int, int]


def compiled(model: nn.Module, grid: Shape, inputs: Any, **options: Any) -> Any:
    """The module, compiled for these inputs."""
    return axograph.parallelize(model, grid, sample_inputs=inputs, **options)


def halves(model: nn.Module, inputs: Any, **options: Any) -> Program:
    """Both halves for one rank, without a search."""
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    return Split(**options).run(Normalize().run(capture(model, args, kwargs)))


def saved_nodes(program: Program) -> list[torch.fx.Node]:
    """What forward saves."""
    pairs = zip(program.results(), program.outputs, strict=True)
    return [node for node, declared in pairs if declared.kind == "saved" and node is not None]


def saved_of(program: Program) -> list[str]:
    """What forward saves: the operator, and the shape on one rank."""
    return [f"{_name(node)} {list(node.meta['val'].shape)}" for node in saved_nodes(program)]


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
    plain, block = (halves(Stack(), X, remat=remat) for remat in ("none", "block"))
    assert saved_of(plain) == [
        "tanh [8, 16]", "sin [8, 16]", "add [8, 4]", "tanh [8, 16]", "sin [8, 16]", "add [8, 4]",
        "tanh [8, 16]", "sin [8, 16]", "add [8, 4]",
    ]  # fmt: skip
    assert saved_of(block) == ["add [8, 4]", "add [8, 4]", "add [8, 4]"]
    again = ran(block.backward) - ran(plain.backward)
    assert again == {"mm": 3, "tanh": 3, "sin": 3, "permute": 1}  # the second product of a block is not needed


def run_again(f: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(f, *args, use_reentrant=False)


def run_again_reentrant(f: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(f, *args, use_reentrant=True)


def run_again_with_keywords(f: Callable[..., Any], x: torch.Tensor) -> Any:
    return checkpoint(f, x=x, scale=1.0, use_reentrant=False)


def run_again_within(f: Callable[..., Any], x: torch.Tensor) -> Any:
    """Inside another call, which counts."""
    return checkpoint(lambda y: (run_again(f, y), "no tensor"), x, use_reentrant=False)[0]


@pytest.mark.parametrize("wrap", [run_again, run_again_reentrant, run_again_with_keywords, run_again_within])
def test_checkpointed_calls_save_their_inputs_alone(wrap: Callable[..., Any]) -> None:
    program = halves(Stack(wrap), (torch.rand(8, 4, requires_grad=True),))
    assert saved_of(program) == ["add [8, 4]", "add [8, 4]", "add [8, 4]"]
    assert ran(program.backward)["tanh"] == 3


def numbers_of(model: nn.Module, *inputs: torch.Tensor) -> dict[str, set[int | None]]:
    """The numbers of the checkpointed calls in which the operators of each module lie."""
    found: dict[str, set[int | None]] = {}
    for node in capture(model, inputs).graph.nodes:
        if node.op == "call_function" and facts(node).phase == "forward" and "tanh" in str(node.target):
            found.setdefault(facts(node).path, set()).add(facts(node).checkpoint)
    return found


class Shared(nn.Module):
    """One block called twice under checkpoint and once without; three in two stretches."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.three = nn.Sequential(Block(), Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(run_again(self.block, run_again(self.block, x)))
        return checkpoint_sequential(self.three, 2, x, use_reentrant=False).sum()  # type: ignore[no-any-return]


def test_calls_are_numbered_in_their_order() -> None:
    x = torch.rand(8, 4)
    assert numbers_of(Shared(), x) == {"block": {0, 1, None}, "three.0": {2}, "three.1": {None}, "three.2": {None}}
    assert numbers_of(Stack(run_again_within), x) == {"layers.0": {0}, "layers.1": {1}, "layers.2": {2}}


def test_a_reentrant_call_whose_inputs_take_no_gradients_gives_none_as_in_torch() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (run_again_reentrant(self.first, x) + self.second(x)).sum()  # type: ignore[no-any-return]

    x, model = torch.rand(8, 4), Both()
    ours = compiled(copy.deepcopy(model), (1, 1, 1, 1), (x,))
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        model(x).backward()
    ours(x).backward()
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False]
    assert [p.grad is None for p in ours.parameters()] == [True, True, False, False]


def trained_alike(model: nn.Module, grid: Shape, inputs: dict[str, Any], **options: Any) -> Any:
    """The module on a grid, whose gradients are those of the model without checkpointed calls."""
    original = copy.deepcopy(model)
    if hasattr(original, "activation_checkpointing_disable"):
        original.activation_checkpointing_disable()
    module = compiled(model, grid, inputs, chunks=1, overlap=False, **options)
    for run in (module, original):
        loss_of(run(**inputs)).backward()
    for ours, theirs in zip(module.parameters(), original.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-9)
    return module


def test_numbers_are_those_of_the_model() -> None:
    gpt, mlp = BY_NAME["gpt"], BY_NAME["mlp"]
    with double_everywhere():
        fitted = trained_alike(
            gpt.model().double(), (2, 1, 2, 1), gpt.inputs(batch=64), remat="auto", memory_bytes=2.1e6
        )
        assert fitted.plan.remat == "auto"
        inputs = {name: tensor.double() for name, tensor in mlp.inputs().items()}
        trained_alike(mlp.model().double(), (1, 1, 2, 1), inputs, remat="block")


def test_hugging_face_s_switch_is_respected() -> None:
    case = BY_NAME["llama"]
    with double_everywhere():
        model = case.model().double()
        model.activation_checkpointing_enable()
        program = trained_alike(model, (1, 2, 1, 2), case.inputs() | {"use_cache": False}).stages["split"].program
    inside = {facts(node).path: _name(node) for node in saved_nodes(program) if ".layers." in facts(node).path}
    communicated = {path for path, name in inside.items() if name.startswith("_c10d")}
    assert {path: name for path, name in inside.items() if path not in communicated} == {
        "model.layers.0": "add", "model.layers.1": "add"
    }  # fmt: skip
    assert communicated <= {path for path in inside if path.endswith("_proj")}


class Ticks:
    """A product takes 10 seconds, another operator one."""

    def compute_s(self, work: Compute) -> float:
        return 10.0 if "mm" in work.op else 1.0

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        return collective.size_bytes

    def hold_s(self, size_bytes: float) -> float:
        return 0.0


def test_no_more_is_recomputed_than_memory_asks_for() -> None:
    plain = compiled(Stack(), (1, 1, 1, 1), X, cost_model=Ticks())
    cases: list[tuple[int, dict[str, int], int]] = [
        (0, {}, 0),
        (100, {"sin": 1}, 1),  # a sine of [8, 16] frees 512 bytes for one second
        (1_100, {"sin": 3}, 3),
        (1_700, {"sin": 3, "tanh": 2, "mm": 2}, 25),  # each further 512 bytes ask for a product, too
    ]
    for missing_bytes, again, seconds in cases:
        limit = plain.plan.memory.total - missing_bytes
        module = compiled(Stack(), (1, 1, 1, 1), X, cost_model=Ticks(), remat="auto", memory_bytes=limit)
        found = ran(module.stages["split"].program.backward) - ran(plain.stages["split"].program.backward)
        assert {name: count for name, count in found.items() if name != "permute"} == again
        assert module.plan.memory.total <= limit
        told = f"backward recomputes for {seconds} s, so that a step fits into {readable(limit)}"
        assert module.plan.notes == ((told,) if again else ())


def test_what_fits_with_recomputation_alone_is_refused_without() -> None:
    plain = compiled(Stack(), (1, 1, 1, 1), X).plan.memory
    limit = plain.total - 0.5 * plain.saved
    with pytest.raises(PlanError, match="no plan fits") as refused:
        compiled(Stack(), (1, 1, 1, 1), X, memory_bytes=limit)
    assert refused.value.remedy.startswith('remat="auto": with the insides of blocks recomputed, a plan holds ')
    plan = compiled(Stack(), (1, 1, 1, 1), X, memory_bytes=limit, remat="auto").plan
    assert plan.memory.total <= limit
    assert "with remat='auto'" in str(plan)
    with pytest.raises(PlanError, match="no plan fits") as refused:
        compiled(Stack(), (1, 1, 1, 1), X, memory_bytes=5_000, remat="auto")
    assert refused.value.asked.endswith('5 kB of memory on each rank, remat="auto"')
    assert refused.value.given.startswith("with the insides of blocks recomputed, the plan that holds least")


def test_an_unknown_way_to_recompute_is_refused() -> None:
    with pytest.raises(AxographError, match="no way to recompute is called 'full'"):
        axograph.parallelize(Stack(), (1, 1, 1, 1), remat="full")  # type: ignore[arg-type]


class Spacious(zoo.GPT):
    """A GPT large enough that what is saved counts."""

    def __init__(self) -> None:
        super().__init__(features=64, layers=2, length=64)


def test_blocks_shrink_memory_and_communicate_no_more() -> None:
    """On a grid: the estimate is just above what is saved, peaks fall, also after scheduling."""
    grid = (2, 1, 2, 1)
    tokens = torch.zeros(16, 64, dtype=torch.int64)
    modules = [compiled(Spacious(), grid, (tokens, tokens), remat=remat) for remat in ("none", "block")]
    plain, block = (module.stages["split"].program for module in modules)
    saved = [sum(size_bytes(node) for node in saved_nodes(program)) for program in (plain, block)]
    assert saved[1] < 0.6 * saved[0]
    for module, size in zip(modules, saved, strict=True):
        assert size <= module.plan.memory.saved <= 1.15 * size
    assert moved(plain) == moved(block)
    assert moved(plain.backward) == moved(block.backward)
    halves = [[module.stages["schedule"].program, module.stages["schedule"].program.backward] for module in modules]
    before, after = (max(peak_bytes(half, grid) for half in both) for both in halves)
    assert after < 0.8 * before
