"""Samples of linear algebra, distances and searches."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import Sample, Tensor, floats, integers, positive, sample

aten = torch.ops.aten
_SQUARE = floats(4, 3, 3)


def _matrices(text: str, op: object, *args: object, **options: object) -> Sample:
    return sample(text, op, *args, tolerance=1e-9, **options)  # type: ignore[arg-type]


SAMPLES = (
    _matrices("b0 [i0_0] [i0_1] -> b0 [o0_0], b0 [o1_0] [o1_1]", aten._linalg_eigh.default, _SQUARE),
    _matrices(
        "b0 [i0_0] [i0_1], b0 [i1_0] [i1_1] -> b0 [o0_0] [o0_1], b0 [o1_0] [o1_1], b0 [o2_0], b0",
        aten._linalg_solve_ex.default,
        _SQUARE,
        floats(4, 3, 2),
    ),
    _matrices(
        "b0 [i0_0] [i0_1] -> b0 [o0_0] [o0_1], b0 [o1_0], b0 [o2_0] [o2_1]",
        aten._linalg_svd.default,
        floats(4, 3, 2),
    ),
    _matrices("b0 1 1 -> b0 1 1, b0", aten.linalg_cholesky_ex.default, positive(4, 1, 1)),
    _matrices("b0 [i0_0] [i0_1] -> b0 [o0_0] [o0_1], b0", aten.linalg_inv_ex.default, _SQUARE),
    _matrices("b0 [i0_0] [i0_1] -> b0 [o0_0] [o0_1], b0 [o1_0], b0", aten.linalg_lu_factor_ex.default, _SQUARE),
    _matrices(
        "b0 [i0_0] [i0_1], b0 [i1_0], b0 [i2_0] [i2_1] -> b0 [o0_0] [o0_1]",
        aten.linalg_lu_solve.default,
        _SQUARE,
        Tensor((4, 3), torch.int32, below=3, positive=True),
        floats(4, 3, 2),
    ),
    _matrices("b0 b1 [i0_0] [i0_1] -> b0 b1 [o0_0] [o0_1]", aten.linalg_matrix_exp.default, floats(2, 4, 3, 3)),
    _matrices("b0 [i0_0] [i0_1] -> b0 [o0_0] [o0_1], b0 [o1_0] [o1_1]", aten.linalg_qr.default, floats(4, 3, 2)),
    _matrices(
        "b0 [i0_0] [i0_1], b0 [i1_0] [i1_1] -> b0 [o0_0] [o0_1]",
        aten.linalg_solve_triangular.default,
        _SQUARE,
        floats(4, 3, 2),
        upper=True,
    ),
    sample("b0 p0 [p1], b0 r [p1] -> b0 p0 r", aten._cdist_forward.default, floats(2, 8, 3), floats(2, 4, 3), 2.0, 2),
    sample("p0 [p1], r [p1] -> p0 r", aten._cdist_forward.default, floats(8, 3), floats(4, 3), 1.0, None),
    sample(
        "b0 p0 r, b0 p0 [p1], b0 r [p1], b0 p0 r -> b0 p0 [p1]; 0",
        aten._cdist_backward.default,
        floats(2, 8, 4),
        floats(2, 8, 3),
        floats(2, 4, 3),
        1.0,
        floats(2, 8, 4),
    ),
    sample("v0 v1, [n] -> v0 v1", aten.bucketize.Tensor, floats(4, 8), floats(6)),
    sample("b0 [n0], b0 v0 -> b0 v0", aten.searchsorted.Tensor, floats(4, 6), floats(4, 8)),
    sample("[n0], v0 v1 -> v0 v1", aten.searchsorted.Tensor, floats(6), floats(4, 8), right=True),
    sample(
        "b0 [n0], b0 v0, b0 [n0] -> b0 v0",
        aten.searchsorted.Tensor,
        floats(4, 6),
        floats(4, 8),
        sorter=integers(6, 4, 6),
    ),
)
