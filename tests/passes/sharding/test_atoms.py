from typing import Any

import pytest
import torch
from torch import fx

from axograph.passes.sharding.atoms import Atoms, find_atoms, units
from axograph.passes.sharding.rule import Rule, parse_rule
from axograph.passes.sharding.rules import rule_of

aten = torch.ops.aten


class Graph:
    """A graph of operators on meta tensors, and the atoms of its values."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def input(self, *shape: int) -> fx.Node:
        node = self.graph.placeholder("x")
        node.meta["val"] = torch.empty(shape, device="meta")
        return node

    def call(self, op: Any, *args: Any) -> fx.Node:
        node = self.graph.call_function(op, args)
        node.meta["val"] = op(*fx.map_arg(args, lambda argument: argument.meta["val"]))
        return node

    def atoms(self, *nodes: fx.Node, tied: list[tuple[fx.Node, fx.Node]] | None = None) -> list[Atoms]:
        rules = {node: rule_of(node) for node in self.graph.nodes if node.op == "call_function"}
        found = find_atoms(self.graph, rules, [((a, 0), (b, 0)) for a, b in tied or []])
        return [found[node, 0] for node in nodes]


def test_a_view_divides_the_product_and_the_weight_before_it() -> None:
    graph = Graph()
    x, weight = graph.input(4, 8), graph.input(8, 96)
    product = graph.call(aten.mm.default, x, weight)
    heads = graph.call(aten.reshape.default, product, [4, 3, 4, 8])
    assert graph.atoms(x, weight, product, heads) == [
        ((4,), (8,)),
        ((8,), (3, 4, 8)),
        ((4,), (3, 4, 8)),
        ((4,), (3,), (4,), (8,)),
    ]


def test_divisions_from_several_views_meet() -> None:
    graph = Graph()
    x = graph.input(24)
    graph.call(aten.reshape.default, x, [2, 12])
    graph.call(aten.reshape.default, x, [6, 4])
    assert graph.atoms(x) == [((2, 3, 4),)]


def test_a_division_that_fits_no_other_is_dropped() -> None:
    graph = Graph()
    x = graph.input(36)
    graph.call(aten.reshape.default, x, [9, 4])
    graph.call(aten.reshape.default, x, [4, 9])
    assert graph.atoms(x) == [((9, 4),)]


def test_slices_divide_into_blocks() -> None:
    graph = Graph()
    x = graph.input(4, 24)
    graph.call(aten.slice.Tensor, x, 1, 8, 16, 1)
    assert graph.atoms(x) == [((4,), (3, 8))]


def test_reductions_end_a_division_and_broadcasts_do_not_make_one() -> None:
    graph = Graph()
    x, scale = graph.input(4, 12), graph.input(4, 1)
    y = graph.call(aten.mul.Tensor, x, scale)
    total = graph.call(aten.sum.dim_IntList, y, [1])
    graph.call(aten.reshape.default, y, [4, 3, 4])
    assert graph.atoms(x, scale, total) == [((4,), (3, 4)), ((4,), (1,)), ((4,),)]


def test_tied_values_share_their_divisions() -> None:
    graph = Graph()
    x, y = graph.input(12), graph.input(12)
    graph.call(aten.reshape.default, y, [3, 4])
    assert graph.atoms(x, y) == [((12,),), ((3, 4),)]
    assert graph.atoms(x, y, tied=[(x, y)]) == [((3, 4),), ((3, 4),)]


def _units(rule: Rule, inputs: tuple[Atoms, ...], outputs: tuple[Atoms, ...]) -> list[tuple[str, int, bool]]:
    return [(unit.factor, unit.size, unit.leading) for unit in units(rule, inputs, outputs)]


def test_a_factor_is_divided_where_all_of_its_occurrences_are() -> None:
    rule = parse_rule("m k, k n -> m n", [(4, 6), (6, 24)])
    found = _units(rule, (((4,), (6,)), ((2, 3), (2, 3, 4))), (((4,), (6, 4)),))
    assert found == [("m", 4, True), ("k", 6, True), ("n", 6, True), ("n", 4, False)]


def test_units_know_their_atoms() -> None:
    rule = parse_rule("b (h d) -> b h d", [(2, 12)], sizes={"h": 3, "d": 4})
    b, d, h = units(rule, (((2,), (3, 4)),), (((2,), (3,), (4,)),))
    assert (b.factor, b.inputs, b.outputs) == ("b", ((0, 0),), ((0, 0),))
    assert (h.factor, h.inputs, h.outputs) == ("h", ((1, 0),), ((1, 0),))
    assert (d.factor, d.inputs, d.outputs) == ("d", ((1, 1),), ((2, 0),))


@pytest.mark.parametrize("atoms", [((12,),), ((4, 3),)])
def test_a_factor_that_its_dim_does_not_divide_off_is_whole(atoms: Atoms) -> None:
    rule = parse_rule("(h d) -> h d", [(12,)], sizes={"h": 3, "d": 4})
    assert units(rule, (atoms,), (((3,), (4,)),)) == []


def test_whole_factors_are_no_units() -> None:
    assert units(parse_rule("b [v] -> b [v]", [(2, 3)]), (((2,), (3,)),), (((2,), (3,)),))[0].factor == "b"
    assert len(units(parse_rule("b [v] -> b [v]", [(2, 3)]), (((2,), (3,)),), (((2,), (3,)),))) == 1
