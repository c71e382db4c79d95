from dataclasses import replace

import pytest

from axograph.grid import Grid
from axograph.passes.sharding.rule import Rule, Strategy, parse_rule
from axograph.passes.sharding.strategies import Choice, Cut, Options, Pass, may_pad, place

MM = parse_rule("m k, k n -> m n", [(8, 4), (4, 8)])


def _matmul(rule: Rule = MM) -> Options:
    return Options(rule, (((8,), (4,)), ((4,), (8,))), (((8,), (8,)),))


def _cut(options: Options, factor: str) -> Cut:
    return Cut(next(unit for unit in options.units if unit.factor == factor))


def _text(strategy: Strategy | None) -> str:
    assert strategy is not None
    return f"{', '.join(map(str, strategy.inputs))} -> {', '.join(map(str, strategy.outputs))}"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "[8, 4], [4, 8] -> [8, 8]"),
        ({"z": "m"}, "[8/z, 4], [4, 8] -> [8/z, 8]"),
        ({"y": "k"}, "[8, 4/y], [4/y, 8] -> [8, 8] partial(y)"),
        ({"x": "n", "y": "k", "z": "m"}, "[8/z, 4/y], [4/y, 8/x] -> [8/z, 8/x] partial(y)"),
        ({"z": "m", "data": "m"}, "[8/data.z, 4], [4, 8] -> [8/data.z, 8]"),
        ({"x": "k", "y": "k"}, "[8, 4/x.y], [4/x.y, 8] -> [8, 8] partial(x, y)"),
    ],
)
def test_placements_follow_from_what_each_axis_cuts(chosen: dict[str, str], expected: str) -> None:
    options = _matmul()
    choices: dict[str, Choice] = {axis: _cut(options, factor) for axis, factor in chosen.items()}
    assert _text(options.strategy(choices, Grid(2, 2, 2, 2))) == expected


def test_a_cut_may_be_uneven_where_most_of_it_is_work() -> None:
    options = _matmul()
    assert _text(options.strategy({"x": _cut(options, "k")}, Grid(3, 1, 1, 1))) == (
        "[8, 4/x], [4/x, 8] -> [8, 8] partial(x)"
    )
    assert options.strategy({"x": _cut(options, "k"), "y": _cut(options, "k")}, Grid(4, 2, 1, 1)) is None
    assert may_pad(5, 4)
    assert may_pad(50257, 8)
    assert not may_pad(9, 8)
    assert not may_pad(3, 4)


def test_a_factor_with_statistics_is_cut_evenly_only() -> None:
    rule = parse_rule("a b -> a b", [(4, 4)], statistics={"b": 1})
    options = Options(rule, (((4,), (4,)),), (((4,), (4,)),))
    assert options.strategy({"x": _cut(options, "a")}, Grid(3, 1, 1, 1)) is not None
    assert options.strategy({"x": _cut(options, "b")}, Grid(3, 1, 1, 1)) is None


def test_partial_sums_are_passed_on() -> None:
    rule = parse_rule("a b, a b -> a b", [(4, 4), (4, 4)], linear=(frozenset({0, 1}),))
    options = Options(rule, (((4,), (4,)),) * 2, (((4,), (4,)),))
    passing = options.choices()[-1]
    assert passing == Pass(frozenset({0, 1}))
    strategy = options.strategy({"x": passing, "y": _cut(options, "b")}, Grid(2, 2, 1, 1))
    assert _text(strategy) == "[4, 4/y] partial(x), [4, 4/y] partial(x) -> [4, 4/y] partial(x)"


def test_a_maximum_is_pending_as_such() -> None:
    rule = parse_rule("a b -> a", [(4, 4)], reduction="max")
    options = Options(rule, (((4,), (4,)),), (((4,),),))
    assert _text(options.strategy({"x": _cut(options, "b")}, Grid(2, 1, 1, 1))) == "[4, 4/x] -> [4] partial(x:max)"


def test_statistics_and_copies_are_never_partial() -> None:
    summed = parse_rule("a b -> a b, a, a", [(4, 4)])
    grid = Grid(2, 1, 1, 1)

    def outputs(rule: Rule) -> str:
        options = Options(rule, (((4,), (4,)),), (((4,), (4,)), ((4,),), ((4,),)))
        return _text(options.strategy({"x": _cut(options, "b")}, grid)).partition(" -> ")[2]

    assert outputs(summed) == "[4, 4/x], [4] partial(x), [4] partial(x)"
    assert outputs(replace(summed, copied=frozenset({2}))) == "[4, 4/x], [4] partial(x), [4]"
    assert outputs(replace(summed, statistics={"b": 1})) == "[4, 4/x], [4], [4]"


def test_a_leading_factor_is_cut_at_its_outermost_part_only() -> None:
    rule = parse_rule("v, i -> i", [(24,), (2,)])
    free = Options(rule, (((2, 3, 4),), ((2,),)), (((2,),),))
    leading = Options(replace(rule, leading=frozenset({"v"})), free.inputs, free.outputs)
    assert [unit.size for unit in free.units if unit.factor == "v"] == [2, 3, 4]
    assert [unit.size for unit in leading.units if unit.factor == "v"] == [2]


def test_every_combination_is_listed_once() -> None:
    options = _matmul()
    grid = Grid(2, 2, 1, 1)
    found = options.strategies({axis: options.choices() for axis in grid.cut_axes}, grid)
    assert len(found) == len({(s.inputs, s.outputs) for s in found}) == 16


def test_cuts_fall_on_atoms() -> None:
    assert str(place(((3, 4, 8), (2,)), {(0, 1): ["x"]}, [("data", "sum"), ("y", "sum")])) == (
        "[(3 4/x 8), 2] partial(y, data)"
    )
