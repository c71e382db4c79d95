"""The user's plan: entries are honoured exactly, or refused by name; whole plans are reproduced."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import axograph
from axograph.capture import Program, capture
from axograph.cost_model import RingModel
from axograph.errors import AxographError, PlanError
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.constraints import WORDS, Entry
from axograph.passes.sharding.shard import Shard
from axograph.placement import Placement
from axograph.plan import Plan

GRID = Grid(2, 2, 1, 1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Named as Hugging Face names: `model.layers.0.up`, `head`. The head multiplies twice."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(8, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.model.layers:
            x = layer(x)
        return (self.head(x) + self.head(x + 1)).pow(2).mean()


@functools.cache
def program() -> Program:
    return Normalize().run(capture(Model(), (torch.ones(4, 8),)))


def planned(entries: dict[str, str], grid: Grid = GRID, scheme: str | None = None) -> Plan:
    read = tuple(Entry.read(pattern, text, grid) for pattern, text in entries.items())
    shard = Shard(grid=grid, cost_model=RingModel(), scheme=scheme, batch_dims={0: 0}, entries=read)
    plan = shard.run(program()).plan
    assert plan is not None
    return plan


def placed(entries: dict[str, str], path: str, grid: Grid = GRID) -> str:
    return str(planned(entries, grid)[path])


# ---- which matmuls an entry names


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("model.layers.1.up", ["model.layers.1.up"]),
        ("layers.1.up", ["model.layers.1.up"]),
        ("model.layers.*.up", ["model.layers.0.up", "model.layers.1.up", "model.layers.2.up"]),
        ("layers.*.up", ["model.layers.0.up", "model.layers.1.up", "model.layers.2.up"]),
        ("*.up", ["model.layers.0.up", "model.layers.1.up", "model.layers.2.up"]),
        ("*1.*", ["model.layers.1.up", "model.layers.1.down"]),
        ("head", ["head", "head#2"]),
        ("head#2", ["head#2"]),
        ("up", []),
        ("layers.1", []),
        ("layers.1.u", []),
        ("model.model.layers.1.up", []),
    ],
)
def test_a_pattern_names_paths_from_the_root_or_from_its_child(pattern: str, named: list[str]) -> None:
    paths = [f"model.layers.{i}.{name}" for i in range(3) for name in ("up", "down")] + ["head", "head#2"]
    assert Entry.read(pattern, "n/x", GRID).matched(paths) == named


# ---- what is honoured


def test_an_entry_is_honoured_exactly_where_the_free_search_would_not() -> None:
    assert placed({}, "model.layers.0.up") == placed({}, "model.layers.1.up") == "m k n/x.y"
    for text in ("m/x k/y n", "m k n"):
        plan = planned({"layers.1.up": text})
        assert str(plan["model.layers.1.up"]) == text
        assert str(plan["model.layers.0.up"]) != text
        assert plan["model.layers.1.up"].reason.startswith(f'plan["layers.1.up"] = "{text}"')


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def test_of_identical_layers_only_those_named_are_placed_so() -> None:
    grid = Grid(2, 1, 1, 1)
    stack = Normalize().run(capture(Stack(6), (torch.ones(4, 8),)))
    shard = Shard(
        grid=grid, cost_model=RingModel(), batch_dims={0: 0}, entries=(Entry.read("layers.1", "m k n", grid),)
    )
    plan = shard.run(stack).plan
    assert plan is not None
    assert [path for path, placed in plan.items() if str(placed) == "m k n"] == ["layers.1"]
    assert plan.explain("layers.2").together == ("layers.4",)


def test_an_entry_goes_before_the_roles_of_axes() -> None:
    grid = Grid(2, 1, 2, 1)
    assert placed({}, "head", grid).startswith("m/z")
    for text in ("m k n/x.z", "m/x k/z n", "m k n"):
        assert placed({"head": text}, "head", grid) == text


def test_a_factor_that_is_not_named_is_free() -> None:
    plan = planned({"layers.0.up": "k/y", "layers.1.up": "n", "layers.1.down": "n/y"})
    assert plan["model.layers.0.up"].k == ("y",)
    assert plan["model.layers.0.up"].n == ("x",)
    assert plan["model.layers.1.up"].n == ()
    assert set(plan["model.layers.1.up"].k + plan["model.layers.1.up"].m) == {"x", "y"}
    assert plan["model.layers.1.down"].n == ("y",)


def test_entries_that_agree_are_put_together() -> None:
    assert placed({"*.up": "n/x", "layers.1.*": "k/y"}, "model.layers.1.up") == "m k/y n/x"


def test_axes_of_one_rank_cut_nothing() -> None:
    assert placed({"head": "m/data k/y n/x"}, "head", Grid(2, 1, 1, 1)) == "m k n/x"


def test_products_of_one_module_are_placed_each_by_its_name() -> None:
    plan = planned({"head#2": "m k n"})
    assert str(plan["head#2"]) == "m k n"
    assert str(plan["head"]) != "m k n"
    assert [str(planned({"head": "m k n"})[path]) for path in ("head", "head#2")] == ["m k n"] * 2


@pytest.mark.parametrize("word", WORDS)
def test_the_words_of_hugging_face_have_their_meaning(word: str) -> None:
    assert (
        dict(Entry.read("*", word, GRID).cuts)
        == {"n/x": {"n": ("x",)}, "k/x": {"k": ("x",)}, "k n": {"k": (), "n": ()}}[WORDS[word]]
    )


def test_a_plan_in_the_words_of_hugging_face_is_the_megatron_layout() -> None:
    plan = planned({"layers.*.up": "colwise", "layers.*.down": "rowwise", "head": "replicated"}, Grid(2, 1, 1, 1))
    assert [str(placed) for placed in plan.values()] == ["m k n/x", "m k/x n"] * 2 + ["m/x k n"] * 2


def test_a_word_that_keeps_weights_whole_has_nothing_to_place_at_a_norm() -> None:
    plan = planned({"layers.*.norm": "replicated_with_grad_allreduce"})
    assert plan.notes == (
        'plan["layers.*.norm"] = "replicated_with_grad_allreduce": no matmul of this call has this name',
    )


def test_the_scheme_and_an_entry_hold_together() -> None:
    plan = planned({"layers.0.up": "n/y"}, scheme="axonn")
    assert str(plan["model.layers.0.up"]) == "m k/x n/y"


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids)).sum()


@pytest.mark.parametrize(("word", "stored"), [("embedding_rowwise", "[12/x, 8]"), ("embedding_colwise", "[12, 8/x]")])
def test_the_words_for_an_embedding_say_how_its_weight_is_stored(word: str, stored: str) -> None:
    module = axograph.parallelize(
        Lookup(), Grid(2, 1, 1, 1), plan={"table": word}, sample_inputs=(torch.ones(2, 4, dtype=torch.int64),)
    )
    assert str(module.plan.parameters["table.weight"].simplified()) == stored
    with pytest.raises(PlanError, match="names no embedding") as refusal:
        planned({"layers.*.nothing": word})
    assert refusal.value.asked == f'plan["layers.*.nothing"] = "{word}"'


def test_an_embedding_that_cannot_be_stored_so_is_refused() -> None:
    with pytest.raises(PlanError) as refusal:
        planned({"layers.*.norm": "embedding_colwise"})
    assert refusal.value.summary == (
        'plan["layers.*.norm"] = "embedding_colwise" cannot be met at \'model.layers.0.norm.weight\''
    )
    assert refusal.value.given == "model.layers.0.norm.weight of shape [8]"


# ---- what is refused

UNREADABLE = "is not a placement"
REFUSED: dict[str, tuple[dict[str, str], str | None, dict[str, str]]] = {
    "no such module": (
        {"layers.*.upp": "n/x"},
        None,
        {"asked": 'plan["layers.*.upp"] = "n/x"', "summary": "names no matmul", "given": "model.layers.0.up"},
    ),
    "a module without a matmul": ({"layers.*.norm": "n/x"}, None, {"asked": 'plan["layers.*.norm"] = "n/x"'}),
    "another notation": (
        {"head": "columns"},
        None,
        {"asked": "plan['head'] = 'columns'", "summary": UNREADABLE, "given": "'columns'", "rule": "colwise"},
    ),
    "an unknown axis": ({"head": "n/w"}, None, {"summary": UNREADABLE, "given": "'w', which is no axis"}),
    "no text": ({"head": 3}, None, {"summary": UNREADABLE, "given": "int instead of text"}),  # type: ignore[dict-item]
    "two entries, one factor": (
        {"*.up": "n/x", "layers.1.*": "n/y"},
        None,
        {
            "summary": "contradict each other at 'model.layers.1.up'",
            "asked": 'plan["*.up"] = "n/x"\nplan["layers.1.*"]',
        },
    ),
    "two entries, one axis": (
        {"*.up": "n/x", "layers.1.*": "k/x"},
        None,
        {"summary": "contradict each other at 'model.layers.1.up'"},
    ),
    "the scheme": (
        {"layers.0.up": "n/x k"},
        "axonn",
        {
            "asked": "scheme='axonn'",
            "given": "'model.layers.0.up', which that scheme places as m k/",
            "rule": "scheme",
        },
    ),
    "a role of the scheme": ({"layers.0.up": "n/x"}, "fsdp", {"summary": "contradicts the scheme 'fsdp'"}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_plan_that_cannot_be_met_is_refused_by_name(what: str) -> None:
    entries, scheme, wanted = REFUSED[what]
    with pytest.raises(PlanError) as refusal:
        planned(entries, scheme=scheme)
    for part, text in wanted.items():
        assert text in getattr(refusal.value, part), part
    assert refusal.value.remedy


def test_a_factor_that_does_not_divide_is_named_with_its_sizes() -> None:
    with pytest.raises(PlanError) as refusal:
        planned({"head": "n/x.y"}, Grid(4, 4, 1, 1))
    assert refusal.value.asked == 'plan["head"] = "n/x.y" on grid x=4 y=4 z=1 data=1'
    assert refusal.value.given.startswith("head: m=4 k=8 n=10 at test_constraints.py:")
    assert "x=4 y=4 does not so divide n=10" in refusal.value.rule
    assert "leave n out" in refusal.value.remedy


# ---- through `parallelize`: numbers, and whole plans

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ENTRIES = {"layers.0.up": "m/x k n/z", "layers.1.up": "k/x.z n", "*.1.down": "n/x.z", "head": "rowwise"}
Z_GRID = Grid(2, 1, 2, 1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return Model().double()


def parallel(plan: Any, grid: Grid = GRID, **options: Any) -> axograph.ParallelModule:
    return axograph.parallelize(model(), grid, plan=plan, sample_inputs=(X,), **options)


def test_placements_that_were_asked_for_give_the_models_numbers_and_come_back_from_a_file(tmp_path: Path) -> None:
    module, original = parallel(ENTRIES, Z_GRID), model()
    assert str(module.plan["model.layers.0.up"]) == "m/x k n/z"
    assert str(module.plan["model.layers.1.down"]) == "m k n/x.z"
    loss, right = module(X), original(X)
    loss.backward()
    right.backward()
    torch.testing.assert_close(loss, right, rtol=1e-9, atol=1e-12)
    for name, parameter in original.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad, rtol=1e-9, atol=1e-12, msg=name)

    module.plan.save(tmp_path / "p.json")
    again = parallel(str(tmp_path / "p.json"), Z_GRID)
    assert not module.plan.diff(again.plan)
    assert again.plan.cost_s == pytest.approx(module.plan.cost_s, rel=1e-12)
    assert again.plan.parameters == module.plan.parameters
    local = [m.stages["localize"].program.graph_module.code for m in (module, again)]
    assert local[0] == local[1]


def test_entries_are_refused_before_the_first_call() -> None:
    with pytest.raises(PlanError, match=r'plan\["layers.9.up"\] = "n/x" names no module') as refusal:
        axograph.parallelize(model(), GRID, plan={"layers.9.up": "n/x"})
    assert "model.layers.0.up" in refusal.value.given
    with pytest.raises(PlanError, match="is not a placement"):
        axograph.parallelize(model(), GRID, plan={"head": "n/x n/y"})
    with pytest.raises(PlanError, match=r"p\.json is no plan file"):
        axograph.parallelize(model(), GRID, plan="p.json")


@functools.cache
def whole() -> Plan:
    return planned({})


OTHERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another grid": (whole, {"grid": Grid(2, 2, 1, 2)}, "made for another grid"),
    "another order": (whole, {"grid": replace(GRID, order=("y", "x", "z", "data"))}, "made for another grid"),
    "another scheme": (whole, {"scheme": "ddp"}, "made under scheme=None"),
    "a parameter of another shape": (
        lambda: replace(whole(), parameters={"head.weight": Placement.parse("[8, 8]")}),
        {},
        "made for another model",
    ),
    "an unknown parameter": (
        lambda: replace(whole(), parameters={"tail.weight": Placement.parse("[8, 8]")}),
        {},
        "made for another model",
    ),
    "an unknown matmul": (
        lambda: replace(whole(), matmuls={"tail": replace(whole()["head"], path="tail")}),
        {},
        "made for another model",
    ),
    "a matmul of other sizes": (
        lambda: replace(whole(), matmuls={"head": replace(whole()["head"], shape=(4, 8, 12))}),
        {},
        "made for another model",
    ),
    "a parameter that cannot lie so": (
        lambda: replace(whole(), parameters={"head.weight": Placement.parse("[10/data, 8]")}),
        {},
        "head.weight cannot be stored as the plan has it",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_whole_plan_for_something_else_is_refused(what: str) -> None:
    plan, options, message = OTHERS[what]
    with pytest.raises(AxographError, match=message) as refusal:
        parallel(plan(), **options)
    assert type(refusal.value) is PlanError
    assert refusal.value.asked
    assert refusal.value.given


def test_a_whole_plan_holds_for_a_batch_that_its_axes_do_not_divide() -> None:
    plan = planned({"head#2": "m/x k/y n"})
    one = Normalize().run(capture(Model(), (torch.ones(1, 8),)))
    entries = tuple(Entry.of(matmul) for matmul in plan.values())
    shard = Shard(grid=GRID, cost_model=RingModel(), batch_dims={0: 0}, entries=entries, stored=plan.parameters)
    again = shard.run(one).plan
    assert again is not None
    assert [(p.k, p.n, p.stored) for p in again.values()] == [(p.k, p.n, p.stored) for p in plan.values()]
    assert str(again["head#2"]) == "m k/y n"


def test_a_matmul_that_a_whole_plan_does_not_have_is_searched_and_noted() -> None:
    plan = whole()
    entries = tuple(Entry.of(matmul) for path, matmul in plan.items() if path != "head#2")
    shard = Shard(grid=GRID, cost_model=RingModel(), batch_dims={0: 0}, entries=entries, stored=plan.parameters)
    again = shard.run(program()).plan
    assert again is not None
    assert again.notes == ("the plan that was given has nothing on head#2: searched",)
    assert not plan.diff(again)
