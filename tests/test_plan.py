from __future__ import annotations

from axograph.grid import Grid
from axograph.placement import Placement
from axograph.plan import MatmulPlacement, Plan


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
