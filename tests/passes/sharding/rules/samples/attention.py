"""Samples of fused attention on the CPU: masks of several shapes, causal, heads of keys shared by groups of queries."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import floats, sample

aten = torch.ops.aten
_forward = aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default

_QUERY = (4, 8, 3, 2)
_OUT = (4, 8, 3, 5)

SAMPLES = (
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v] -> b h [s] [v], b h [l]",
        _forward,
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        0.0,
        True,
    ),
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v], 1 1 [s] [t] -> b h [s] [v], b h [l]",
        _forward,
        floats(4, 8, 3, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 5, 2),
        attn_mask=floats(1, 1, 3, 5),
    ),
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v], b 1 [s] [t] -> b h [s] [v], b h [l]",
        _forward,
        floats(4, 8, 3, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 5, 2),
        attn_mask=floats(4, 1, 3, 5),
    ),
    sample(
        "b h [s] [e], b h [t] [e], b h [t] [v], b h [s] [t] -> b h [s] [v], b h [l]",
        _forward,
        floats(4, 8, 3, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 5, 2),
        attn_mask=floats(4, 8, 3, 5),
    ),
    sample(
        "b (h g) [s] [e], b h [t] [e], b h [t] [v] -> b (h g) [s] [v], b (h g) [l]",
        _forward,
        floats(4, 8, 3, 2),
        floats(4, 4, 5, 2),
        floats(4, 4, 5, 2),
    ),
    sample(
        "1 h [s] [e], 1 h [t] [e], 1 h [t] [v] -> 1 h [s] [v], 1 h [l]",
        _forward,
        floats(1, 8, 3, 2),
        floats(1, 8, 3, 2),
        floats(1, 8, 3, 2),
        scale=0.3,
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b h [s] [v], b h [l] "
        "-> b h [s] [e], b h [t] [e], b h [t] [v]; 0",
        _backward,
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3),
        0.0,
        True,
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b h [s] [v], b h [l], 1 1 [s] [t] "
        "-> b h [s] [e], b h [t] [e], b h [t] [v]; 0",
        _backward,
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3),
        0.0,
        False,
        attn_mask=floats(1, 1, 3, 5),
    ),
    sample(
        "b h [s] [v], b h [s] [e], b h [t] [e], b h [t] [v], b h [s] [v], b h [l], b h [s] [t] "
        "-> b h [s] [e], b h [t] [e], b h [t] [v]; 0",
        _backward,
        floats(4, 8, 3, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 5, 2),
        floats(4, 8, 3, 2),
        floats(4, 8, 3),
        0.0,
        False,
        attn_mask=floats(4, 8, 3, 5),
        scale=0.2,
    ),
)
