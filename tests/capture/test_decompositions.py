"""What we take apart ourselves computes what torch's operator does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from axograph.capture import decompositions
from axograph.capture.decompositions import BY_TORCH

aten = torch.ops.aten


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


_A, _B, _SQUARES = _drawn(3, 4, 5), _drawn(3, 5, 2), _drawn(6, 3, 3)

CASES: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (decompositions.addbmm, aten.addbmm, (_drawn(4, 2), _A, _B), {"beta": 0.5, "alpha": 2.0}),
    (decompositions.determinant, aten._linalg_det, (_SQUARES,), {}),
    (decompositions.determinant, aten._linalg_det, (_SQUARES.mT,), {}),
    (decompositions.sign_and_logarithm, aten._linalg_slogdet, (_SQUARES,), {}),
    (decompositions.sign_and_logarithm, aten._linalg_slogdet, (_SQUARES.mT,), {}),
    (decompositions.put, aten.put, (_drawn(4, 2), torch.tensor([7, 0, 7]), _drawn(3), True), {}),
    (decompositions.trace, aten.trace, (_drawn(4, 6),), {}),
    (
        decompositions.trilinear,
        aten._trilinear,
        (_drawn(7, 5), _drawn(2, 5, 4), _drawn(7, 4), [1, 3], [0], [1, 2], [2, 3]),
        {},
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "args", "options"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_decomposition_computes_what_the_operator_does(ours: Any, theirs: Any, args: Any, options: Any) -> None:
    found, expected = ours(*args, **options), theirs(*args, **options)
    found, expected = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_torch_knows_the_operators_that_it_takes_apart() -> None:
    assert [name for name in BY_TORCH if not hasattr(aten, name)] == []
    assert len(set(BY_TORCH)) == len(BY_TORCH)
