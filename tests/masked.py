"""An original model run with the very random numbers that its compiled program draws: what dropout is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from axograph.capture.random_numbers import random


class Masked(TorchFunctionMode):
    """While it is entered, dropout and attention take their masks from our generator, draw by draw.

    The key is drawn on entry, as a compiled program draws it when it is called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.site = 0
        self.key = torch.zeros((), dtype=torch.int64)

    def __enter__(self) -> Masked:
        self.key = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)
        entered: Masked = super().__enter__()
        return entered

    def mask(self, shape: Sequence[int], p: float) -> torch.Tensor:
        """The next mask, with its scale: what is dropped is 0."""
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        device = torch.device("cpu")
        kept = random(self.key, self.site, None, list(shape), strides, "keep", 1 - p, torch.bool, device)
        self.site += 1
        return kept / (1 - p)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self.dropout(*args, **kwargs)
        if func is F.dropout2d:
            return self.dropout(*args, **kwargs, per_map=True)
        if func is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        return func(*args, **kwargs)

    def dropout(
        self, x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, per_map: bool = False
    ) -> torch.Tensor:
        """As `F.dropout`; `per_map` as `F.dropout2d`."""
        if not training or p == 0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if per_map else x.shape
        return x * self.mask(shape, p)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """As `F.scaled_dot_product_attention`, its weights dropped after the softmax."""
        assert not enable_gqa
        scores = query @ key.mT * (scale if scale is not None else query.shape[-1] ** -0.5)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = scores.softmax(-1)
        if dropout_p > 0:
            weights = weights * self.mask(weights.shape, dropout_p)
        return weights @ value
