"""Random numbers made of a key, a site and an index: parts equal the whole, and they are random."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from axograph.capture import random_numbers
from axograph.capture.philox import philox

KEY = torch.tensor(-0x0123456789ABCDEF)


def drawn(
    sizes: Sequence[int], kind: str = "uniform", *, key: torch.Tensor = KEY, site: int = 0, first: int | None = None,
    strides: Sequence[int] | None = None, keep: float = 0.5, dtype: torch.dtype = torch.float64,
) -> torch.Tensor:  # fmt: skip
    steps = strides if strides is not None else [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    begin = None if first is None else torch.tensor(first)
    dtype = torch.bool if kind == "keep" else dtype
    made: torch.Tensor = random_numbers.random(key, site, begin, sizes, steps, kind, keep, dtype, torch.device("cpu"))
    return made


def test_a_number_is_a_word_of_the_counter_of_its_index_and_site() -> None:
    halves = (KEY & 0xFFFFFFFF, (KEY >> 32) & 0xFFFFFFFF)
    words = [philox((torch.tensor([n]), torch.tensor([0]), 5, 0), halves) for n in range(3)]
    expected = [float(words[i // 4][i % 4]) / 2**32 for i in range(12)]
    assert drawn([3, 4], site=5).flatten().tolist() == expected
    beyond = philox((torch.tensor([2]), torch.tensor([1]), 5, 0), halves)  # the index has 64 bits
    assert drawn([1], site=5, first=4 * (2**32 + 2) + 3).tolist() == [float(beyond[3]) / 2**32]


def test_a_mask_takes_two_numbers_of_a_word_unless_it_keeps_or_drops_hardly_any() -> None:
    halves = (KEY & 0xFFFFFFFF, (KEY >> 32) & 0xFFFFFFFF)
    words = [int(word) for n in range(2) for word in philox((torch.tensor([n]), torch.tensor([0]), 0, 0), halves)]
    parts = [part for word in words for part in (word % 2**16, word // 2**16)]
    assert drawn([16], "keep", keep=0.7).tolist() == [part < 45875 for part in parts]  # 0.7 * 2**16 = 45875.2
    assert drawn([8], "keep", keep=0.999).tolist() == [word < round(0.999 * 2**32) for word in words]


@settings(max_examples=40)
@given(st.data())
def test_a_part_has_the_numbers_that_it_has_in_the_whole(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    whole = drawn(shape)
    strides = whole.stride()
    first = sum(low * stride for (low, _), stride in zip(bounds, strides, strict=True))
    here = tuple(slice(low, high) for low, high in bounds)
    for kind, made in (("uniform", whole), ("keep", drawn(shape, "keep"))):
        part = drawn([high - low for low, high in bounds], kind, first=first, strides=strides)
        assert torch.equal(part, made[here])


def test_what_is_made_chunk_by_chunk_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shifted = drawn([5, 37]), drawn([3, 11], first=2, strides=[37, 1])
    for chunk in (1, 3, 4, 100):
        monkeypatch.setattr(random_numbers, "_CHUNK", {"cpu": chunk})
        assert torch.equal(drawn([5, 37]), whole)
        assert torch.equal(drawn([3, 11], first=2, strides=[37, 1]), shifted)


def test_under_vmap_each_rank_has_its_key_and_its_part() -> None:
    keys, firsts = torch.tensor([1, 1, 2]), torch.tensor([0, 6, 6])

    def part(key: torch.Tensor, first: torch.Tensor) -> Any:
        return random_numbers.random(key, 0, first, [2, 2], [3, 1], "uniform", 0.0, torch.float64, torch.device("cpu"))

    found = torch.vmap(part)(keys, firsts)
    for i, (key, first) in enumerate(zip(keys, firsts, strict=True)):
        assert torch.equal(found[i], drawn([2, 2], key=key, first=int(first), strides=[3, 1]))
    assert not torch.equal(found[1], found[2])


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.995, 1.0])
def test_as_many_are_kept_as_asked(keep: float) -> None:
    kept = drawn([400, 500], "keep", keep=keep).double().mean().item()
    assert abs(kept - keep) <= 4 * math.sqrt(keep * (1 - keep) / 200_000)


def test_masks_of_other_sites_keys_and_places_agree_as_often_as_chance_has_it() -> None:
    masks = [
        *(drawn([1000, 20], "keep", site=site) for site in (0, 1)),
        *(drawn([1000, 20], "keep", key=torch.tensor(key)) for key in (1, 2, 1 << 32, -1)),
        drawn([1000, 20], "keep", first=20_000),
    ]
    for one, other in itertools.combinations(masks, 2):
        assert abs((one == other).double().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(20_000)
    rows = masks[0].double() - 0.5
    correlations = (rows.T @ rows / 1000 * 4).fill_diagonal_(0)
    assert correlations.abs().max() < 5 / math.sqrt(1000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_uniform_numbers_are_spread_evenly_below_one(dtype: torch.dtype) -> None:
    made = drawn([100_000], dtype=dtype)
    assert made.dtype == dtype
    assert made.min() >= 0
    assert made.max() < 1
    counts = torch.histc(made.double(), 8, 0, 1)
    assert (counts - 12_500).abs().max() < 4.5 * math.sqrt(12_500)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_normal_numbers_have_the_moments_of_the_normal_distribution(dtype: torch.dtype) -> None:
    made = drawn([200_000], "normal", dtype=dtype).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(made.pow(power).mean().item() - moment) < 4.5 * math.sqrt(variance / 200_000)
    assert made.abs().max() < 7
