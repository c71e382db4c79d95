"""Every rule against its whole operator: all that it allows is run on the virtual grid, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from axograph.passes.sharding.rules import RULES
from tests.passes.sharding.rules.one_operator import Bench, Sample, check, floats, printed, sample
from tests.passes.sharding.rules.samples import CUDA_SAMPLES, SAMPLES

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors of a few elements are not worth waking threads for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_all_ways_that_a_rule_allows_compute_what_the_whole_operator_does(sample: Sample) -> None:
    bench = Bench(sample)
    assert printed(bench.rule) == sample.text
    for grid, strategy in bench.pairs():
        check(bench, strategy, grid)


@pytest.mark.parametrize("sample", CUDA_SAMPLES, ids=str)
def test_on_cuda_all_ways_that_a_rule_allows_have_the_shapes_it_says(sample: Sample) -> None:
    bench = Bench(sample)
    assert printed(bench.rule) == sample.text
    for grid, strategy in bench.pairs():
        results = bench.localized(strategy, grid).results()
        for result, placement in zip(results, [p for p in strategy.outputs if p is not None], strict=True):
            assert result is not None
            assert tuple(result.meta["val"].shape) == placement.local_shape(grid)


def test_every_rule_has_a_sample() -> None:
    assert set(RULES) == {sample.op for sample in (*SAMPLES, *CUDA_SAMPLES)} & set(RULES)


def test_a_rule_that_sums_what_should_be_maximised_is_caught() -> None:
    bench = Bench(sample("", aten.amax.default, floats(4, 8), [1]))
    bench.options.rule = replace(bench.rule, reduction="sum")
    with pytest.raises(AssertionError, match=r"(?s)amax.*partial\(y\).*not close"):
        _check_all(bench)


def test_a_rule_that_lets_a_whole_dim_be_cut_is_caught() -> None:
    bench = Bench(sample("", aten.cumsum.default, floats(4, 8), 0))
    bench.options.rule = replace(bench.rule, whole=frozenset())
    bench.options.__post_init__()
    with pytest.raises(AssertionError):
        _check_all(bench)


def test_a_rule_that_passes_partial_sums_through_a_curve_is_caught() -> None:
    bench = Bench(sample("", aten.exp.default, floats(4, 8)))
    bench.options.rule = replace(bench.rule, linear=(frozenset({0}),))
    with pytest.raises(AssertionError, match="not close"):
        _check_all(bench)


def _check_all(bench: Bench) -> None:
    for grid, strategy in bench.pairs():
        check(bench, strategy, grid)
