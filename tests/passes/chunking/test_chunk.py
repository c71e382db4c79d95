"""Chunks: numbers stay as they are, collectives hide, and what is communicated stays the same."""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache

import pytest
import torch
import transformers
from torch import nn

import axograph
from axograph.capture.program import Program, facts
from axograph.cost_model import RingModel
from axograph.errors import PlanError
from axograph.grid import Grid
from axograph.inspection.volume import volume
from axograph.passes.chunking.chunk import Chunk, Chunks
from axograph.passes.scheduling.estimate import step_s
from axograph.passes.scheduling.report import report
from axograph.passes.split import Split
from tests.test_equality import assert_equal_gradients, largest_difference
from tests.zoo import BY_NAME, GPT, MLP, double_everywhere, loss_of

MODEL = RingModel()


def assert_equal_step(
    model: nn.Module, inputs: dict[str, torch.Tensor], grid: tuple[int, int, int, int], chunks: int, **options: object
) -> Program:
    """A step in chunks gives the numbers of the unmodified model; the program in chunks."""
    theirs = copy.deepcopy(model)
    ours = axograph.parallelize(model, grid=grid, chunks=chunks, pipeline=_unscheduled, **options)  # type: ignore[arg-type]
    outputs = [module(**inputs) for module in (ours, theirs)]
    assert largest_difference(*outputs) < 1e-9
    for output in outputs:
        loss_of(output).backward()
    assert_equal_gradients(ours, theirs)
    assert largest_difference(dict(ours.named_buffers()), dict(theirs.named_buffers())) < 1e-9
    return ours.stages["chunk"].program


def _unscheduled(standard):  # type: ignore[no-untyped-def]
    return [step for step in standard if step.name != "schedule"]


def shortened(model: nn.Module) -> nn.Module:
    """The model with the first of its layers alone."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList):
                setattr(module, name, child[:1])
    return model


def of_chunks(program: Program, op: str) -> list[int | None]:
    """The chunks that the operators of this name work on."""
    return [facts(node).chunk for node in program.graph.nodes if op in str(node.target)]


@pytest.mark.parametrize(
    ("name", "grid", "chunks"),
    [
        ("mlp", (1, 2, 1, 1), 4),
        ("gpt", (2, 2, 1, 2), 2),
        ("llama", (2, 1, 1, 1), 2),
        ("bert", (1, 2, 1, 1), 2),
    ],
)
def test_a_step_in_chunks_equals_the_unmodified_model(name: str, grid: tuple[int, int, int, int], chunks: int) -> None:
    case = BY_NAME[name]
    inputs = case.inputs(batch=8)
    if name == "bert":
        inputs["attention_mask"] = torch.ones(8, 8, dtype=torch.int64)
        inputs["attention_mask"][::3, 5:] = 0
    with double_everywhere():
        doubled = {key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in inputs.items()}
        program = assert_equal_step(shortened(case.model()).double(), doubled, grid, chunks)
    assert set(of_chunks(program, "mm.default")) == set(range(chunks))


class Normalised(nn.Module):
    """Batch statistics between two convolutions: a chunk does not know those of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def test_what_a_chunk_cannot_do_alone_is_done_on_the_whole() -> None:
    torch.manual_seed(0)
    with double_everywhere():
        program = assert_equal_step(Normalised().double(), {"x": torch.randn(4, 4, 6, 6)}, (1, 1, 1, 1), 2)
    assert set(of_chunks(program, "batch_norm")) == {None}
    assert of_chunks(program, "convolution.default") == [0, 1, 0, 1]


def test_experts_work_on_the_tokens_of_all_chunks() -> None:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=32, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=16,
        experts_implementation="grouped_mm",
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    ids = torch.randint(0, 32, (4, 8))
    theirs = copy.deepcopy(model)
    ours = axograph.parallelize(model, grid=(2, 1, 1, 1), chunks=2)
    losses = [module(input_ids=ids, labels=ids).loss for module in (ours, theirs)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)
    for loss in losses:
        loss.backward()
    found = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad, rtol=0, atol=1e-5)


GRID = (2, 2, 1, 2)


class Dropped(nn.Module):
    """A product whose result is partly dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.layer(x), 0.5).pow(2).sum()


def test_chunks_drop_the_same_elements_as_the_whole() -> None:
    x, losses = torch.randn(8, 16), []
    for chunks in (1, 4):
        torch.manual_seed(0)
        module = axograph.parallelize(Dropped(), (1, 1, 1, 1), chunks=chunks)
        losses.append(module(x).detach())
    torch.testing.assert_close(*losses)


@cache
def whole() -> Program:
    """A GPT of one layer on one rank, in bfloat16 on meta tensors, before it is split."""
    with torch.device("meta"):
        model = GPT(features=4096, heads=16, layers=1, length=2048).to(torch.bfloat16)
        tokens = torch.empty(16, 2048, dtype=torch.int64)
    return before_chunks(model, GRID, {"input_ids": tokens, "labels": tokens})


def before_chunks(model: nn.Module, grid: tuple[int, int, int, int], inputs: dict[str, torch.Tensor]) -> Program:
    module = axograph.parallelize(model, grid, scheme="axonn", overlap=False, sample_inputs=inputs)
    return module.stages["simplify"].program


def chunked(program: Program, chunks: Chunks, grid: tuple[int, int, int, int] = GRID) -> Program:
    """The program in chunks of dim 0 of its inputs."""
    return Chunk(grid=Grid.of(grid), cost_model=MODEL, chunks=chunks, batch_dims={0: 0, 1: 0}).run(program)


def time_s(program: Program) -> float:
    grid = Grid.of(GRID)
    return step_s(Split(grid=grid, cost_model=MODEL).run(program), grid, MODEL)


def test_chunks_hide_what_the_next_operator_waits_for() -> None:
    found = chunked(whole(), "auto")
    assert time_s(found) < 0.9 * time_s(whole())
    split = Split(grid=Grid.of(GRID), cost_model=MODEL).run(found)
    assert str(report(split, Grid.of(GRID), MODEL)).startswith("a step on grid x=2 y=2 z=1 data=2 in 2 chunks: ")


def test_weights_and_their_gradients_do_not_decide_what_is_cut() -> None:
    """Features would cut them, and leave what the second product waits for whole."""
    with torch.device("meta"):
        model = MLP(features=4096, hidden=16384).to(torch.bfloat16)
        inputs = {"x": torch.empty(16, 512, 4096, dtype=torch.bfloat16)}
    program = chunked(before_chunks(model, (2, 2, 2, 2), inputs), 2, (2, 2, 2, 2))
    products = [node for node in program.graph.nodes if "mm" in str(node.target) and facts(node).path == "up"]
    assert [(facts(node).chunk, tuple(node.meta["val"].shape)) for node in products[:2]] == [
        (0, (1024, 8192)),
        (1, (1024, 8192)),
    ]


def test_one_chunk_where_nothing_is_waited_for() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
        inputs = {"input": torch.empty(16, 512, 4096)}
    program = before_chunks(model, (1, 1, 1, 4), inputs)
    assert chunked(program, "auto", (1, 1, 1, 4)) is program


def test_what_is_communicated_stays_the_same() -> None:
    programs = [Split().run(program) for program in (whole(), chunked(whole(), 2))]
    assert volume(programs[0]) == volume(programs[1])
    once, twice = (collectives(program) for program in programs)
    assert once["data"] == twice["data"] > 10  # gradients are reduced once
    assert twice["x"] > 1.5 * once["x"]


def collectives(program: Program) -> Counter[str]:
    """How many a step has, by axis."""
    assert program.backward is not None
    nodes = [*program.graph.nodes, *program.backward.graph.nodes]
    return Counter(".".join(about.collective.axes) for about in map(facts, nodes) if about.collective is not None)


def test_a_number_that_divides_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be cut in 3 chunks"):
        chunked(whole(), 3)


@pytest.mark.parametrize("asked", [0, -1, True, 1.5, "two"])
def test_what_is_no_number_is_refused(asked: object) -> None:
    with pytest.raises(PlanError, match="is not a number of chunks"):
        axograph.parallelize(nn.Linear(4, 4), (1, 1, 1, 1), chunks=asked)  # type: ignore[arg-type]
