"""Operators that are captured in terms of simpler ones, which have rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from axograph.capture.draws import DRAWS
from axograph.capture.losses import LOSSES

aten = torch.ops.aten

BY_TORCH = (
    # losses
    "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "mse_loss_backward", "smooth_l1_loss",
    "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "soft_margin_loss", "soft_margin_loss_backward",
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits",
    "multi_margin_loss", "multilabel_margin_loss_forward",
    # activations
    "rrelu_with_noise_backward",
    # reductions
    "aminmax", "count_nonzero", "dist", "nansum", "norm", "renorm",
    # products
    "addmv", "addr", "linalg_cross",
    # parts put elsewhere
    "block_diag", "channel_shuffle", "diag_embed", "index_copy", "index_fill",
    "isin", "pixel_shuffle", "pixel_unshuffle", "rot90", "take", "unfold_backward",
    # windows and images
    "affine_grid_generator", "col2im", "im2col", "max_unpool2d", "max_unpool3d", "reflection_pad3d",
    "reflection_pad3d_backward", "replication_pad1d", "replication_pad2d", "replication_pad3d", "hann_window",
)  # fmt: skip
"""Operators that are taken apart as torch does it."""


def trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand_a: list[int],
    expand_b: list[int],
    expand_c: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """A sum over products of three tensors (`nn.Bilinear`), as two products of matrices.

    `expand_*` are the dims that a tensor does not have, `summed` those that are summed, of all the dims there are.
    """
    rank = a.dim() + len(expand_a)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    terms = ["".join(letters[d] for d in range(rank) if d not in dims) for dims in (expand_a, expand_b, expand_c)]
    result = "".join(letters[d] for d in range(rank) if d not in summed)
    return torch.einsum(f"{','.join(terms)}->{result}", a, b, c)


def addbmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """`bias + sum over i of a[i] @ b[i]`, for `a` [i, m, k] and `b` [i, k, n]: one product over i and k."""
    product = a.permute(1, 0, 2).reshape(a.shape[1], -1) @ b.reshape(-1, b.shape[2])
    return beta * bias + alpha * product


def put(table: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Elements put at positions of the flat table: the derivative of `take`."""
    flat = table.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(table.shape)


def trace(matrix: torch.Tensor) -> torch.Tensor:
    """The sum of the diagonal."""
    return matrix.diagonal().sum()


def determinant(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The determinant, and the factors that its derivative asks for."""
    factors, pivots = _factors(matrix)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    return _sign_of_order(pivots, matrix) * diagonal.prod(-1), factors, pivots


def sign_and_logarithm(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sign and the logarithm of the determinant, and the factors that their derivative asks for."""
    factors, pivots = _factors(matrix)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    sign = _sign_of_order(pivots, matrix) * diagonal.sgn().prod(-1)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


def _factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch's own kernel takes apart: the transposed matrix where that is the one in its order of memory."""
    transposed = matrix.is_contiguous() and not matrix.is_complex()
    factors, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT if transposed else matrix)
    return factors, pivots


def _sign_of_order(pivots: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """-1 for an odd number of exchanged rows."""
    moved = (pivots != torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)).sum(-1)
    return (1 - 2 * (moved % 2)).to(matrix.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **DRAWS,
    **LOSSES,
    aten._trilinear.default: trilinear,
    aten._linalg_det.default: determinant,
    aten._linalg_slogdet.default: sign_and_logarithm,
    aten.addbmm.default: addbmm,
    aten.put.default: put,
    aten.trace.default: trace,
}
"""Operators that are taken apart in our own way."""
