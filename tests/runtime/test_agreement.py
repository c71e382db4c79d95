"""Agreement: digests of inputs, the first line in which programs differ, failures of others.

What ranks say to each other is tested on four of them in `tests/distributed`.
"""

from __future__ import annotations

import pytest
import torch

from axograph.errors import AgreementError
from axograph.runtime.agreement import _digest_tensors, _first_difference, _raise_failure, _Report


def test_inputs_are_told_apart_by_type_shape_and_values() -> None:
    inputs = [
        [torch.zeros(4)],
        [torch.ones(4)],
        [torch.zeros(2, 2)],
        [torch.zeros(4, dtype=torch.float64)],
        [torch.zeros(8, dtype=torch.bfloat16)],
        [torch.zeros(4, dtype=torch.int64)],
        [torch.zeros(4), torch.zeros(4)],
        [],
    ]
    digests = [_digest_tensors(tensors) for tensors in inputs]
    assert len(set(digests)) == len(inputs)
    assert _digest_tensors([torch.arange(6).reshape(2, 3).T.contiguous()]) == _digest_tensors(
        [torch.arange(6).reshape(2, 3).T]
    )


def test_inputs_without_storage_are_told_apart_by_type_and_shape() -> None:
    with torch.device("meta"):
        assert _digest_tensors([torch.zeros(4)]) == _digest_tensors([torch.ones(4)])
        assert _digest_tensors([torch.zeros(4)]) != _digest_tensors([torch.zeros(5)])


def test_scalars_and_empty_tensors_have_digests() -> None:
    assert _digest_tensors([torch.tensor(1.0)]) != _digest_tensors([torch.tensor(2.0)])
    assert _digest_tensors([torch.zeros(0)]) != _digest_tensors([torch.zeros(0, 1)])


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["a\nb", "a\nb", "a\nc"], (2, "b", "c")),
        (["a\nb", "x\nb", "a\nc"], (1, "a", "x")),
        (["a", "a\nb"], (1, "(nothing)", "b")),
        (["a\nb", "a"], (1, "b", "(nothing)")),
    ],
)
def test_the_first_rank_and_line_that_differ_are_found(texts: list[str], found: tuple[int, str, str]) -> None:
    assert _first_difference(texts) == found


def test_a_failure_of_one_rank_is_raised_with_its_error() -> None:
    _raise_failure([_Report(""), _Report("")])
    with pytest.raises(AgreementError, match="rank 1 could not compile the model") as refusal:
        _raise_failure([_Report(""), _Report("ValueError: no"), _Report("KeyError: later")])
    assert refusal.value.given == "ValueError: no"
    assert refusal.value.remedy == "see the error of rank 1"
