"""Samples of fused attention on CUDA, for their shapes only: no GPU is needed for fake tensors."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import Tensor, floats, integers, sample

aten = torch.ops.aten
_half = torch.bfloat16


def _heads(count: int, length: int) -> Tensor:
    return floats(4, count, length, 16, dtype=_half)


_Q, _K = _heads(8, 32), _heads(8, 64)
_GROUPED = _heads(4, 64)
_LSE, _LSE_CUDNN = floats(4, 8, 32, dtype=torch.float32), floats(4, 8, 32, 1, dtype=torch.float32)
_MASK = floats(4, 1, 32, 64, dtype=_half)
_SEED, _STATE = integers(9), integers(9, 2)

CUDA_SAMPLES = (
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v] -> b h [s] [v], b h [l], -, -, -, -, [p8_0], , 1",
        aten._scaled_dot_product_flash_attention.default,
        _Q,
        _K,
        _K,
        0.0,
        True,
        device="cuda",
    ),
    sample(
        "b (h g) [s] [e], b h [t] [e], b h [t] [v] -> b (h g) [s] [v], b (h g) [l], -, -, -, -, [p8_0], , 1",
        aten._scaled_dot_product_flash_attention.default,
        _Q,
        _GROUPED,
        _GROUPED,
        device="cuda",
    ),
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v], b 1 [s] [t] -> b h [s] [v], b h [l], , ",
        aten._scaled_dot_product_efficient_attention.default,
        _Q,
        _K,
        _K,
        _MASK,
        True,
        device="cuda",
    ),
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v] -> b h [s] [v], b h [l] 1, -, -, -, -, , , -",
        aten._scaled_dot_product_cudnn_attention.default,
        _Q,
        _K,
        _K,
        None,
        True,
        device="cuda",
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b h [s] [v], b h [l], [p8_0],  "
        "-> b h [s] [e], b h [t] [e], b h [t] [v]; 0",
        aten._scaled_dot_product_flash_attention_backward.default,
        _Q,
        _Q,
        _K,
        _K,
        _Q,
        _LSE,
        None,
        None,
        32,
        64,
        0.0,
        True,
        _STATE,
        _SEED,
        device="cuda",
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b 1 [s] [t], b h [s] [v], b h [l], ,  "
        "-> b h [s] [e], b h [t] [e], b h [t] [v], b 1 [s] [t]; 0",
        aten._scaled_dot_product_efficient_attention_backward.default,
        _Q,
        _Q,
        _K,
        _K,
        _MASK,
        _Q,
        _LSE,
        _SEED,
        _SEED,
        0.0,
        [True, True, True, True],
        device="cuda",
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b 1 [s] [t], b h [s] [v], b h [l], ,  "
        "-> b h [s] [e], b h [t] [e], b h [t] [v], -; 0",
        aten._scaled_dot_product_efficient_attention_backward.default,
        _Q,
        _Q,
        _K,
        _K,
        _MASK,
        _Q,
        _LSE,
        _SEED,
        _SEED,
        0.0,
        [True, True, True, False],
        device="cuda",
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b h [s] [v], b h [l] 1, ,  "
        "-> b h [s] [e], b h [t] [e], b h [t] [v]; 0",
        aten._scaled_dot_product_cudnn_attention_backward.default,
        _Q,
        _Q,
        _K,
        _K,
        _Q,
        _LSE_CUDNN,
        _SEED,
        _SEED,
        None,
        None,
        None,
        32,
        64,
        0.0,
        True,
        device="cuda",
    ),
)
