"""The products of a mixture of experts as operators: each row times the matrix of its own expert.

    expert_mm(x, weight, expert)      [t, k], [e, k, n], [t] -> [t, n]      x[t] @ weight[expert[t]]
    expert_outer(x, y, expert, e)     [t, k], [t, n], [t]    -> [e, k, n]   the sum of x[t] y[t]' over the rows of each

They are the product and its two derivatives: that of `x` is `expert_mm` with the weight transposed. A row whose expert
is not in `0..e-1` belongs to none: it gives zeros and takes no time. Rows come in any order: sorting them by expert,
as the grouped kernels ask, happens inside, so that rows can be cut like those of any product.
"""

from __future__ import annotations

import torch

_GROUPED = (torch.bfloat16, torch.float16, torch.float32)
"""The types that `torch._grouped_mm` takes on the CPU and on CUDA (torch 2.13)."""


def _order(expert: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows sorted by expert, those of none last, and where the rows of each expert end: [t] i64, [e] i32."""
    known = torch.where((expert >= 0) & (expert < count), expert, count)
    sorted_, rows = torch.sort(known, stable=True)
    ends = torch.searchsorted(sorted_, torch.arange(count, device=expert.device), right=True, out_int32=True)
    return rows, ends


def _aligned(*tensors: torch.Tensor) -> bool:
    """Whether the grouped kernel takes tensors: rows of 16 bytes, a known type."""
    return all(t.dtype in _GROUPED and t.shape[-1] * t.element_size() % 16 == 0 for t in tensors)


def _ranges(ends: torch.Tensor) -> list[tuple[int, int]]:
    stops: list[int] = ends.tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


@torch.library.custom_op("axograph::expert_mm", mutates_args=())
def expert_mm(x: torch.Tensor, weight: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Each row times the matrix of its expert: `[t, k], [e, k, n], [t] -> [t, n]`."""
    rows, ends = _order(expert, weight.shape[0])
    given = x[rows]
    made = x.new_zeros(x.shape[0], weight.shape[2])
    if _aligned(given, weight, made):
        sums = torch.nn.functional.grouped_mm(given, weight, offs=ends)
        within = torch.arange(len(rows), device=x.device) < ends[-1]  # the kernel leaves the rows of none unset
        made[rows] = torch.where(within[:, None], sums, 0)
        return made
    for matrix, (start, stop) in zip(weight, _ranges(ends), strict=True):
        made[rows[start:stop]] = given[start:stop] @ matrix
    return made


@expert_mm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op("axograph::expert_outer", mutates_args=())
def expert_outer(x: torch.Tensor, y: torch.Tensor, expert: torch.Tensor, count: int) -> torch.Tensor:
    """For each expert, the sum of the outer products of its rows: `[t, k], [t, n], [t] -> [e, k, n]`."""
    rows, ends = _order(expert, count)
    left, right = x[rows], y[rows]
    if _aligned(left, right):
        return torch.nn.functional.grouped_mm(left.T, right, offs=ends)
    return torch.stack([left[start:stop].T @ right[start:stop] for start, stop in _ranges(ends)])


@expert_outer.register_fake
def _(x: torch.Tensor, y: torch.Tensor, expert: torch.Tensor, count: int) -> torch.Tensor:
    return x.new_empty(count, x.shape[1], y.shape[1])
