import pytest

from axograph.passes.sharding.rule import Strategy, parse_rule


@pytest.mark.parametrize(
    ("text", "shapes", "options"),
    [
        ("m k, k n -> m n", [(4, 8), (8, 2)], {}),
        ("b s [v] -> b s [v]", [(2, 3, 4)], {}),
        ("b (h d) -> b h d", [(2, 12)], {"sizes": {"h": 3, "d": 4}}),
        ("b (h [d]) -> b h [d]", [(2, 12)], {"sizes": {"h": 3, "d": 4}}),
        ("k, k -> ", [(4,), (4,)], {}),
    ],
)
def test_a_rule_prints_as_it_was_written(text: str, shapes: list[tuple[int, ...]], options: dict[str, object]) -> None:
    assert str(parse_rule(text, shapes, **options)) == text


def test_sizes_come_from_the_shapes() -> None:
    assert parse_rule("m k, k n -> m n", [(4, 8), (8, 2)]).sizes == {"m": 4, "k": 8, "n": 2}


def test_dims_of_size_1_have_no_factor() -> None:
    assert str(parse_rule("b s, b s -> b s", [(4, 1), (4, 8)])) == "b 1, b s -> b s"
    assert str(parse_rule("m k, k n -> m n", [(4, 1), (1, 2)])) == "m 1, 1 n -> m n"


def test_factors_of_size_1_vanish_from_fused_dims() -> None:
    rule = parse_rule("(G c) -> (G c)", [(8,)], sizes={"G": 1, "c": 8})
    assert (rule.inputs, rule.outputs) == (((("c",),),), ((("c",),),))


def test_shapes_that_contradict_the_text_are_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="m k, k n -> m n"):
        parse_rule("m k, k n -> m n", [(4, 8), (7, 2)])


def test_a_strategy_tells_the_axes_that_cut_factors() -> None:
    strategy = Strategy(inputs=(), outputs=(), cuts={"m": ("data", "z"), "n": ("x",)})
    assert strategy.axes("m") == ("data", "z")
    assert strategy.axes("n", "k", "m") == ("x", "data", "z")
    assert strategy.axes("k") == ()
