from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from axograph.errors import PlanError
from axograph.grid import AXES, CUT_ORDER, Grid
from axograph.placement import Placement
from axograph.plan import MatmulPlacement, Plan, parse_cuts


def example(cost_s: float = 0.00321) -> Plan:
    up = MatmulPlacement(
        path="mlp.up",
        weight="mlp.up.weight",
        m=("data", "z"),
        n=("x",),
        k=("y",),
        shape=(64, 32, 128),
        stored=Placement.parse("[128/x.z, 32/y]"),
    )
    scores = MatmulPlacement(path="scores", weight="", m=("data",), reason="x=2 is idle: it divides nothing evenly")
    return Plan(
        grid=Grid(2, 2, 2, 2),
        scheme="axonn",
        matmuls={"mlp.up": up, "scores": scores},
        parameters={"mlp.up.weight": Placement.parse("[128/x.z, 32/y]")},
        cost_s=cost_s,
        certificate="optimal",
        notes=("z=2 does not divide the batch of 3",),
    )


def test_a_plan_reads_as_a_table() -> None:
    assert str(example()).splitlines() == [
        "plan on grid x=2 y=2 z=2 data=2, scheme axonn: 3.21 ms a step before overlap, optimal",
        "  mlp.up  m/data.z k/y n/x          W stored [128/x.z, 32/y]",
        "  scores  m/data k n                (x=2 is idle: it divides nothing evenly)",
        "  note: z=2 does not divide the batch of 3",
    ]


def test_durations_take_the_unit_that_reads_best() -> None:
    headers = [str(example(cost_s)).splitlines()[0] for cost_s in (12.5, 0.5, 4.2e-5)]
    assert [header.split(": ")[1].split(" a step")[0] for header in headers] == ["12.5 s", "500 ms", "42 us"]


def test_a_plan_is_a_mapping_of_paths() -> None:
    plan = example()
    assert list(plan) == ["mlp.up", "scores"]
    assert len(plan) == 2
    assert str(plan["mlp.up"]) == "m/data.z k/y n/x"


# ---- the notation


def test_the_notation_that_is_printed_is_read() -> None:
    assert parse_cuts("m/data.z k/y n/x") == {"m": ("data", "z"), "k": ("y",), "n": ("x",)}
    assert parse_cuts("n k/x") == {"n": (), "k": ("x",)}
    assert parse_cuts(str(example()["mlp.up"])) == {"m": ("data", "z"), "k": ("y",), "n": ("x",)}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("", "nothing"),
        ("n/x h/y", "'h', which is not m, k or n named once"),
        ("n/x n/y", "'n', which is not m, k or n named once"),
        ("n/w", "'w', which is no axis"),
        ("n/", "'', which is no axis"),
        ("n/x k/x", "axis x twice"),
        ("n/y.x", "'y.x': a cut goes in the order data, x, y, z, outermost first"),
    ],
)
def test_other_text_is_refused(text: str, given: str) -> None:
    with pytest.raises(PlanError) as refusal:
        parse_cuts(text)
    assert refusal.value.given == given
    assert "m/data.z k/y n/x" in refusal.value.rule


# ---- files

names = st.text(st.sampled_from("abc.01#ü "), min_size=1, max_size=8)
axes = st.lists(st.sampled_from(CUT_ORDER), unique=True).map(lambda a: tuple(sorted(a, key=CUT_ORDER.index)))
placements = st.sampled_from(["[8]", "bf16[8/x.z, (3 4/y 2)]", "[6, 4] partial(x:max)"]).map(Placement.parse)


@st.composite
def matmuls(draw: st.DrawFn) -> dict[str, MatmulPlacement]:
    made = {}
    for path in draw(st.lists(names, unique=True, max_size=4)):
        owner = draw(st.lists(st.sampled_from("mkn-"), min_size=4, max_size=4))
        cuts = {f: tuple(a for a, o in zip(CUT_ORDER, owner, strict=True) if o == f) for f in "mkn"}
        shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 10**9)))
        stored, reason = draw(st.none() | placements), draw(st.text(max_size=9))
        made[path] = MatmulPlacement(path=path, weight=path, shape=shape, stored=stored, reason=reason, **cuts)
    return made


plans = st.builds(
    Plan,
    grid=st.builds(Grid, *[st.integers(1, 64)] * 4, order=st.permutations(AXES).map(tuple)),
    scheme=st.none() | st.just("axonn"),
    matmuls=matmuls(),
    parameters=st.dictionaries(names, placements, max_size=3),
    cost_s=st.floats(0, 1e9),
    certificate=st.sampled_from(["optimal", "within 0.1% of the lower bound"]),
    notes=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


@given(plans)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_plan_that_was_saved_is_loaded_as_it_was(tmp_path: Path, plan: Plan) -> None:
    plan.save(tmp_path / "p.json")
    loaded = Plan.load(tmp_path / "p.json")
    assert loaded == plan
    assert str(loaded) == str(plan)
    assert not plan.diff(loaded)
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


def test_a_plan_file_has_a_line_for_each_matmul(tmp_path: Path) -> None:
    example().save(str(tmp_path / "p.json"))
    lines = (tmp_path / "p.json").read_text().splitlines()
    assert lines[1:4] == [
        '  "format": "axograph plan",',
        '  "version": 1,',
        '  "grid": {"x": 2, "y": 2, "z": 2, "data": 2, "order": ["x", "y", "z", "data"]},',
    ]
    assert (
        '    "mlp.up": {"placement": "m/data.z k/y n/x", "shape": [64, 32, 128], "weight": "mlp.up.weight", '
        '"stored": "[128/x.z, 32/y]", "reason": ""},'
    ) in lines


def test_saving_leaves_the_old_file_where_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    example().save(path)
    before = path.read_text()
    with pytest.raises(TypeError):
        replace(example(), certificate=object()).save(path)  # type: ignore[arg-type]
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("{", "no JSON: "),
        ("[]", 'JSON without "format"'),
        ('{"format": "other"}', 'JSON without "format"'),
    ],
)
def test_a_foreign_file_is_no_plan(tmp_path: Path, text: str, given: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(PlanError, match=r"p\.json is no plan file") as refusal:
        Plan.load(tmp_path / "p.json")
    assert refusal.value.given.startswith(given)


def test_a_file_that_is_not_there_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"p\.json is no plan file") as refusal:
        Plan.load(tmp_path / "p.json")
    assert refusal.value.given == "No such file or directory"


@pytest.mark.parametrize(
    ("place", "value", "where", "given"),
    [
        (("version",), 2, "", "version 2"),
        (("cost_s",), "dear", "", "cost_s = 'dear'"),
        (("matmuls",), None, "", "matmuls = None"),
        (("grid", "x"), 0, "grid", "grid=(0, 2, 2, 2)"),
        (("grid", "y"), True, "grid", "y = True"),
        (("parameters", "mlp.up.weight"), "[128/q]", "parameters", "mlp.up.weight = '[128/q]'"),
        (("matmuls", "mlp.up", "placement"), "n/x k/x", "matmuls 'mlp.up'", "placement = 'n/x k/x': axis x twice"),
        (("matmuls", "mlp.up", "shape"), [1, 2], "matmuls 'mlp.up'", "shape = [1, 2]"),
    ],
)
def test_a_damaged_entry_is_named(
    tmp_path: Path, place: tuple[str, ...], value: object, where: str, given: str
) -> None:
    path = tmp_path / "p.json"
    example().save(path)
    entries = json.loads(path.read_text())
    table = entries
    for name in place[:-1]:
        table = table[name]
    table[place[-1]] = value
    path.write_text(json.dumps(entries))
    with pytest.raises(PlanError, match=r"p\.json is damaged") as refusal:
        Plan.load(path)
    assert where in refusal.value.asked
    assert refusal.value.given.startswith(given)


def test_an_entry_that_is_gone_is_named(tmp_path: Path) -> None:
    example().save(tmp_path / "p.json")
    entries = json.loads((tmp_path / "p.json").read_text())
    del entries["matmuls"]["scores"]["weight"]
    (tmp_path / "p.json").write_text(json.dumps(entries))
    with pytest.raises(PlanError) as refusal:
        Plan.load(tmp_path / "p.json")
    assert refusal.value.given == "no entry 'weight'"
    assert "matmuls 'scores'" in refusal.value.asked


# ---- differences


def layered(cut: str, stored: str, cost_s: float) -> Plan:
    paths = [f"layers.{i}.up" for i in range(3)]
    return Plan(
        grid=Grid(2, 2, 1, 1),
        scheme=None,
        matmuls={path: MatmulPlacement(path=path, weight="", **{cut: ("x",)}) for path in paths},
        parameters={"head": Placement.parse(stored)},
        cost_s=cost_s,
        certificate="optimal",
    )


def test_a_difference_says_what_changed_and_the_price() -> None:
    before, after = layered("n", "[8, 8]", 0.002), layered("k", "[8/x, 8]", 0.003)
    found = before.diff(after)
    assert found
    assert list(found.matmuls) == ["layers.0.up", "layers.1.up", "layers.2.up"]
    assert (found.matmuls["layers.1.up"].before, found.matmuls["layers.1.up"].after) == ("m k n/x", "m k/x n")
    assert str(found).splitlines() == [
        "3 matmuls and 1 parameters differ, 2 ms -> 3 ms a step (+50.00%)",
        "  layers.*.up (3)  m k n/x -> m k/x n",
        "  head  stored [8, 8] -> [8/x, 8]",
    ]


def test_a_plan_on_another_grid_or_with_other_matmuls_differs() -> None:
    plan = layered("n", "[8]", 0.002)
    other = replace(plan, grid=Grid(2, 1, 2, 1), scheme="ddp", matmuls={"layers.0.up": plan["layers.0.up"]})
    assert str(plan.diff(other)).splitlines() == [
        "2 matmuls and 0 parameters differ, 2 ms -> 2 ms a step",
        "  grid  x=2 y=2 z=1 data=1 -> x=2 y=1 z=2 data=1",
        "  scheme  free -> ddp",
        "  layers.*.up (2)  m k n/x -> (not there)",
    ]


def test_a_plan_does_not_differ_from_itself() -> None:
    assert str(example().diff(example())) == "the same plan, 3.21 ms -> 3.21 ms a step"


# ---- explanations of a plan without its model


def test_a_plan_without_a_model_explains_what_it_knows() -> None:
    text = str(example().explain("mlp.up"))
    assert text.splitlines()[0] == ("mlp.up: m/data.z k/y n/x  (m=64 k=32 n=128, mlp.up.weight stored [128/x.z, 32/y])")
    assert "not known: moves, runner-up and what was ruled out" in text
    assert "runner-up:" not in text


def test_a_matmul_that_there_is_not_is_named_with_similar_ones() -> None:
    with pytest.raises(PlanError, match=r"no matmul 'mlp\.upp'") as refusal:
        example().explain("mlp.upp")
    assert refusal.value.given == "the matmuls mlp.up"


def test_a_plan_is_copied_without_what_explains_it() -> None:
    plan = replace(example(), explainer=lambda path: None)  # type: ignore[arg-type,return-value]
    copied = pickle.loads(pickle.dumps(plan))
    assert copied == plan
    assert copied.explainer is None
