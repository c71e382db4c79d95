"""Machines: the figures that files state, and the files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from axograph.cost_model import Machine
from axograph.errors import AxographError

MACHINES = Path(__file__).parents[2] / "axograph" / "cost_model" / "machines"


def test_the_machines_that_come_with_axograph_are_known_by_their_names() -> None:
    assert Machine.known() == ("alps", "frontier", "h200_node", "perlmutter", "workstation")
    for name in Machine.known():
        assert Machine.load(name).name == name


def test_perlmutter() -> None:
    machine = Machine.load("perlmutter")
    assert machine.ranks_per_node == 4
    assert machine.memory_bytes == 40e9
    assert machine.matmul_flops_per_s("bf16") == pytest.approx(280.8e12)
    assert machine.inter_node.node_bytes_per_s == 4 * 25e9
    assert machine.slowest_link_bytes_per_s == 25e9  # four ranks on four interfaces


def test_an_element_type_that_is_not_listed_counts_at_the_slowest_rate() -> None:
    machine = Machine.load("workstation")
    assert machine.matmul_flops_per_s("i64") == machine.matmul_flops_per_s("f64") == pytest.approx(67.2e9)


@pytest.mark.parametrize("as_given", [str, Path])
def test_a_file_is_loaded_by_its_path(tmp_path: Path, as_given: type) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(_perlmutter().replace('name = "perlmutter"', 'name = "mine"'), encoding="utf-8")
    assert Machine.load(as_given(file)).name == "mine"


@pytest.mark.parametrize("source", ["summit", "no/such/file.toml", Path("nothing")])
def test_an_unknown_machine_is_refused_with_the_known_ones(source: str | Path) -> None:
    with pytest.raises(AxographError) as refusal:
        Machine.load(source)
    assert str(source) in refusal.value.summary
    assert refusal.value.given == "the machines alps, frontier, h200_node, perlmutter, workstation"


@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        ("ranks_per_node = 4\n", "", "ranks_per_node: missing"),
        ("ranks_per_node = 4\n", "ranks_per_node = 4.5\n", "ranks_per_node: 4.5"),
        ("ranks_per_node = 4\n", "ranks_per_node = 4\ncolour = 1\n", "colour: 1"),
        ("memory_bytes = 40e9", "memory_bytes = -1", "memory_bytes: -1"),
        ("memory_bytes = 40e9", "memory_bytes = inf", "memory_bytes: inf"),
        ("memory_bytes = 40e9", "memory_bytes = true", "memory_bytes: True"),
        ('name = "perlmutter"', "name = 7", "name: 7"),
        ("step_latency_s = 3.4e-6", "", "intra_node.step_latency_s: missing"),
        ("bf16 = {", "bf8 = {}\nbf16 = {", "matmul.bf8: {}"),
        (
            "achievable_fraction = 0.90 }\nf16",
            "achievable_fraction = 90 }\nf16",
            "matmul.bf16.achievable_fraction: 90.0",
        ),
        ("[inter_node]", "[inter_node", "the text: not TOML"),
    ],
)
def test_a_malformed_file_is_refused_by_entry(old: str, new: str, given: str) -> None:
    text = _perlmutter()
    assert old in text
    with pytest.raises(AxographError, match="the machine file mine") as refusal:
        Machine.parse(text.replace(old, new), where="mine")
    assert refusal.value.given.startswith(given)


def _perlmutter() -> str:
    return (MACHINES / "perlmutter.toml").read_text(encoding="utf-8")
