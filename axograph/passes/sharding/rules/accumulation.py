"""Sums along cut dims: taken in a wide type, finished by an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def accumulated(emit: Any, x: fx.Node) -> tuple[torch.dtype, fx.Node]:
    """The type of x, and x in the type that sums of it are taken in, as the fused kernels do."""
    dtype: torch.dtype = x.meta["val"].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return dtype, cast(emit, x, wide)


def cast(emit: Any, x: fx.Node, dtype: torch.dtype) -> fx.Node:
    """x in another type."""
    if x.meta["val"].dtype == dtype:
        return x
    return emit.call(aten._to_copy.default, x, dtype=dtype)  # type: ignore[no-any-return]


def total_over(emit: Any, x: fx.Node, dims: Sequence[int], axes: tuple[str, ...]) -> fx.Node:
    """The sum over dims that these axes cut, kept as dims of size 1."""
    return emit.all_reduce(emit.call(aten.sum.dim_IntList, x, list(dims), True), axes, "sum")  # type: ignore[no-any-return]


def mean_over(emit: Any, x: fx.Node, dims: Sequence[int], axes: tuple[str, ...], count: int) -> fx.Node:
    """The mean over dims of `count` elements in all, which these axes cut."""
    return emit.call(aten.div.Scalar, total_over(emit, x, dims, axes), count)  # type: ignore[no-any-return]


def multiply(emit: Any, x: fx.Node, *factors: fx.Node | None) -> fx.Node:
    """The product of all factors that there are."""
    for factor in factors:
        if factor is not None:
            x = emit.call(aten.mul.Tensor, x, factor)
    return x


def subtract(emit: Any, x: fx.Node, *terms: fx.Node) -> fx.Node:
    """x less all terms."""
    for term in terms:
        x = emit.call(aten.sub.Tensor, x, term)
    return x


def inverse_deviation(emit: Any, variance: fx.Node, eps: float) -> fx.Node:
    """`1 / sqrt(variance + eps)`."""
    return emit.call(aten.rsqrt.default, emit.call(aten.add.Tensor, variance, eps))  # type: ignore[no-any-return]
