"""Routes: levels and sharing against an enumeration of groups and nodes, and bandwidths by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from axograph.cost_model import CollectiveKind, Machine
from axograph.cost_model.route import bandwidth_bytes_per_s, route
from axograph.grid import AXES, Grid

GRIDS = [
    Grid(2, 2, 2, 2),
    Grid(1, 4, 2, 2),
    Grid(8, 1, 2, 1),
    Grid(1, 1, 16, 1),
    Grid(4, 2, 1, 4),
    Grid(2, 4, 2, 2, order=("data", "z", "y", "x")),
    Grid(2, 1, 2, 1, order=("z", "x", "data", "y")),
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("ranks_per_node", [1, 2, 4, 8])
def test_routes_agree_with_an_enumeration(grid: Grid, ranks_per_node: int) -> None:
    for axes in (axes for count in (1, 2, 3, 4) for axes in combinations(AXES, count)):
        way = route(grid, axes, ranks_per_node)
        nodes_of_groups = [{rank // ranks_per_node for rank in group} for group in grid.groups(axes)]
        assert way.ranks == grid.extent(axes)
        assert way.inside_node == all(len(nodes) == 1 for nodes in nodes_of_groups)
        leaving_node_0 = sum(0 in nodes and len(nodes) > 1 for nodes in nodes_of_groups)
        assert way.sharing == (1 if way.inside_node else leaving_node_0)


def test_groups_that_straddle_nodes_are_not_inside_them() -> None:
    assert not route(Grid(3, 2, 1, 1), ("x",), 4).inside_node  # ranks 3, 4, 5 on nodes of 0-3 and 4-7
    assert route(Grid(3, 1, 1, 1), ("x",), 4).inside_node  # ranks 0, 1, 2 only


@pytest.mark.parametrize(
    ("grid", "axes", "expected"),
    [
        (Grid(2, 1, 1, 1), ("x",), 100e9),  # one pair: its four NVLinks
        (Grid(4, 1, 1, 1), ("x",), 300e9),  # a node: the links to all three others
        (Grid(8, 1, 1, 1), ("x",), 100e9),  # one ring through the node's four interfaces
        (Grid(2, 1, 8, 1), ("z",), 50e9),  # two rings
        (Grid(2, 2, 8, 1), ("z",), 25e9),  # four
        (Grid(2, 4, 8, 1), ("z",), 25e9),  # still four: the node has no more ranks
        (Grid(2, 2, 8, 1), ("y", "z"), 50e9),  # two, as each passes two ranks of the node
    ],
)
def test_bandwidths_of_perlmutter(grid: Grid, axes: tuple[str, ...], expected: float) -> None:
    assert bandwidth_bytes_per_s(Machine.load("perlmutter"), route(grid, axes, 4), "all_reduce") == expected


@pytest.mark.parametrize(("kind", "expected"), [("all_gather", 100e9), ("all_to_all", 25e9)])
def test_an_all_to_all_sends_from_every_rank_of_a_node(kind: CollectiveKind, expected: float) -> None:
    assert bandwidth_bytes_per_s(Machine.load("perlmutter"), route(Grid(8, 1, 1, 1), ("x",), 4), kind) == expected


def test_a_ring_between_nodes_is_no_faster_than_a_rank_inside() -> None:
    workstation = Machine.load("workstation")  # loopback at 1 GB/s, network at 1.25 GB/s
    assert bandwidth_bytes_per_s(workstation, route(Grid(16, 1, 1, 1), ("x",), 8), "all_gather") == 1e9
