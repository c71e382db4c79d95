"""The parts of the cluster's benchmark that need no cluster: options, its cost model, its table."""

from pathlib import Path

import pytest

from axograph.cost_model.protocol import Collective, Compute
from axograph.grid import Grid
from benchmarks.cluster.__main__ import rate_bytes_per_s, table
from benchmarks.cluster.gloo_model import Figures, GlooModel
from benchmarks.cluster.running import Running, Taken
from benchmarks.cluster.systems import parse
from benchmarks.cluster.systems.axograph import keywords

FIGURES = Figures(filled=0.5, latency_s=0.0, flops_per_s=1e9, memory_bytes_per_s=1e9, operator_s=0.0)


def test_systems_are_named_with_options() -> None:
    name, options = parse("axograph:grid=2x1x1x1,chunks=2,overlap=0,remat=block,compile")
    assert name == "axograph"
    assert keywords(options) == {"chunks": 2, "overlap": False, "remat": "block", "compile": True}
    assert parse("fsdp2") == ("fsdp2", {})
    assert rate_bytes_per_s("200mbit") == 25e6


@pytest.mark.parametrize(
    ("kind", "axes", "ranks_per_host", "time_s"),
    [
        ("all_reduce", ("data",), 1, 2.0),  # two hosts exchange all of 8 bytes at half of 8 bytes a second
        ("all_gather", ("data",), 1, 1.0),  # and half of what is gathered
        ("reduce_scatter", ("data",), 1, 1.0),
        ("all_gather", ("data",), 2, 2.0),  # two pairs share the links
        ("reduce_scatter", ("x", "data"), 2, 2.0),  # each of two ranks sends a quarter to two others
        ("all_reduce", ("x", "data"), 2, 3.0),  # a ring of four crosses each link once, with 3/2 of the bytes
        ("all_gather", ("x",), 2, 4e-9),  # on the loopback
        ("all_gather", ("y",), 2, 0.0),
    ],
)
def test_a_collective_takes_what_the_busiest_link_carries(
    kind: str, axes: tuple[str, ...], ranks_per_host: int, time_s: float
) -> None:
    model = GlooModel(8.0, ranks_per_host, FIGURES)
    grid = Grid(ranks_per_host, 1, 1, 2)
    moved = Collective(kind=kind, axes=axes, size_bytes=8.0)  # type: ignore[arg-type]
    assert model.collective_s(moved, grid) == pytest.approx(time_s)


def test_a_rank_that_shares_a_processor_computes_slower() -> None:
    work = Compute(op="aten.mm.default", flops=1e9, size_bytes=8.0, dtype="f32")
    assert GlooModel(8.0, 1, FIGURES).compute_s(work) == 1.0
    assert GlooModel(8.0, 1, FIGURES.shared(2.0)).compute_s(work) == 2.0
    assert FIGURES.shared(0.5) == FIGURES


def test_figures_are_kept_in_files(tmp_path: Path) -> None:
    FIGURES.save(tmp_path / "box.json")
    assert Figures.load(tmp_path / "box.json") == FIGURES


def test_the_table_compares_measured_with_simulated() -> None:
    def taken(wall_s: float, loss: float, **simulated: float) -> Taken:
        return Taken(wall_s=wall_s, cpu_s=1.0, loss=loss, sent_bytes=2e6, foreign=0.25, **simulated)

    alone = Running("alone", None, [], [taken(2.0, 5.0), taken(2.0, 4.0)])  # type: ignore[arg-type]
    other = Running("other", None, [], [taken(3.0, 5.5, simulated_s=2.75, simulated_exposed_s=0.75)] * 2)  # type: ignore[arg-type]
    text = table([alone, other], {"alone": [0, 1], "other": [0, 1]}, [5.0, 5.25])
    assert text.splitlines()[-1] == (
        "| other | 3.00 s | 3.00 | 3.00 | 1.50 | 1.00 s | 2.75 s | 0.75 s | 1.00 s | 2.0 MB | 5e-01 | 25% |"
    )
