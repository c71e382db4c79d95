"""Samples of pooling, resizing and padding of images, and of factories."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import floats, integers, sample

aten = torch.ops.aten
_IMAGE, _SMALL = floats(4, 8, 4, 4), floats(4, 8, 2, 2)

SAMPLES = (
    sample(
        "d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1], d0 d1 [o1_0] [o1_1]",
        aten.max_pool2d_with_indices.default,
        _IMAGE,
        [2, 2],
    ),
    sample(
        "d0 [i0_0] [i0_1] -> d0 [o0_0] [o0_1], d0 [o1_0] [o1_1]",
        aten.max_pool2d_with_indices.default,
        floats(8, 4, 4),
        [3, 3],
        [1, 1],
        [1, 1],
    ),
    sample(
        "d0 d1 [i0_0] [i0_1], d0 d1 [i1_0] [i1_1], d0 d1 [i2_0] [i2_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten.max_pool2d_with_indices_backward.default,
        _SMALL,
        _IMAGE,
        [2, 2],
        [2, 2],
        [0, 0],
        [1, 1],
        False,
        integers(16, 4, 8, 2, 2),
    ),
    sample("d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0", aten.avg_pool2d.default, _IMAGE, [2, 2]),
    sample(
        "d0 d1 [i0_0] [i0_1], d0 d1 [i1_0] [i1_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten.avg_pool2d_backward.default,
        _SMALL,
        _IMAGE,
        [2, 2],
        [2, 2],
        [0, 0],
        False,
        True,
        None,
    ),
    sample("d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0", aten._adaptive_avg_pool2d.default, _IMAGE, [2, 2]),
    sample(
        "d0 d1 [i0_0] [i0_1], d0 d1 [i1_0] [i1_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten._adaptive_avg_pool2d_backward.default,
        _SMALL,
        _IMAGE,
    ),
    sample("d0 d1 [i0_0] -> d0 d1 [o0_0]; 0", aten.reflection_pad1d.default, floats(4, 8, 4), [1, 2]),
    sample(
        "d0 d1 [i0_0], d0 d1 [i1_0] -> d0 d1 [o0_0]; 0",
        aten.reflection_pad1d_backward.default,
        floats(4, 8, 7),
        floats(4, 8, 4),
        [1, 2],
    ),
    sample("d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0", aten.reflection_pad2d.default, _IMAGE, [1, 0, 1, 1]),
    sample(
        "d0 d1 [i0_0] [i0_1], d0 d1 [i1_0] [i1_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten.reflection_pad2d_backward.default,
        floats(4, 8, 6, 5),
        _IMAGE,
        [1, 0, 1, 1],
    ),
    sample("d0 d1 [i0_0] -> d0 d1 [o0_0]; 0", aten.upsample_nearest1d.default, floats(4, 8, 3), [6]),
    sample(
        "d0 d1 [i0_0] -> d0 d1 [o0_0]; 0", aten.upsample_nearest1d_backward.default, floats(4, 8, 6), [6], [4, 8, 3]
    ),
    sample("d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0", aten.upsample_nearest2d.default, _SMALL, [4, 4]),
    sample(
        "d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten.upsample_nearest2d_backward.default,
        _IMAGE,
        [4, 4],
        [4, 8, 2, 2],
    ),
    sample("d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0", aten.upsample_bilinear2d.default, _SMALL, [4, 4], True),
    sample(
        "d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten.upsample_bilinear2d_backward.default,
        _IMAGE,
        [4, 4],
        [4, 8, 2, 2],
        True,
    ),
    sample("d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0", aten.upsample_bicubic2d.default, _SMALL, [4, 4], False),
    sample(
        "d0 d1 [i0_0] [i0_1] -> d0 d1 [o0_0] [o0_1]; 0",
        aten.upsample_bicubic2d_backward.default,
        _IMAGE,
        [4, 4],
        [4, 8, 2, 2],
        False,
    ),
    sample(" -> d0 d1", aten.full.default, [4, 8], 2.5, dtype=torch.float64),
    sample(" -> ", aten.full.default, [], 1),
    sample(" -> d0 1 d2", aten.full.default, [8, 1, 4], True),
    sample(" -> [d0]", aten.arange.default, 8),
    sample(" -> [d0]", aten.arange.start, 2, 10),
    sample(" -> [d0]", aten.arange.start_step, 0, 16, 2),
    sample(" -> [d0] [d1]", aten.eye.default, 4),
    sample(" -> [d0] [d1]", aten.eye.m, 4, 8),
    sample(" -> [d0]", aten.linspace.default, 0, 1, 8),
)
