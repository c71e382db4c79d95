"""Samples of slices, selections, concatenations, paddings and triangles."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import floats, integers, sample

aten = torch.ops.aten

SAMPLES = (
    sample("d0 ([block] d1) -> d0 d1; 0", aten.slice.Tensor, floats(4, 24), 1, 8, 16, 1),
    sample("([block] d0) d1 -> d0 d1; 0", aten.slice.Tensor, floats(24, 4), 0, 12, 24, 1, divided={0: (2, 3, 4, 4)}),
    sample("d0 [d1] -> d0 [part]; 0", aten.slice.Tensor, floats(4, 24), 1, 4, 16, 1),
    sample("d0 [d1] -> d0 [part]; 0", aten.slice.Tensor, floats(4, 8), 1, 0, 8, 2),
    sample("d0 [block] -> d0 1; 0", aten.slice.Tensor, floats(4, 8), 1, 3, 4, 1),
    sample("([block] d0) d1 -> d0 d1", aten.slice.Tensor, integers(9, 8, 8), 0, 0, 4, 1),
    sample("d0 [d1] -> d0 1; 0", aten.slice.Tensor, floats(4, 8), 1, 8, 8, 1),
    sample("d0 d1 -> d0 ([block] d1); 0", aten.slice_backward.default, floats(4, 8), [4, 24], 1, 8, 16, 1),
    sample("[part] d1 -> [d0] d1; 0", aten.slice_backward.default, floats(8, 4), [16, 4], 0, 4, 12, 1),
    sample("d0 [part] -> d0 [d1]; 0", aten.slice_backward.default, floats(8, 4), [8, 8], -1, 0, 8, 2),
    sample(
        "d0 ([block] d1), d0 d1 -> d0 ([block] d1); 0 1",
        aten.slice_scatter.default,
        floats(4, 16),
        floats(4, 8),
        1,
        8,
        16,
        1,
    ),
    sample("d0 [d1], d0 [part] -> d0 [d1]; 0 1", aten.slice_scatter.default, floats(4, 16), floats(4, 4), 1, 2, 6, 1),
    sample("[d0] d1 d2 -> d1 d2; 0", aten.select.int, floats(3, 4, 8), 0, 2),
    sample("d0 [d1] -> d0; 0", aten.select.int, floats(4, 8), -1, -1),
    sample("d0 d1 -> d0 d1 [d2]; 0", aten.select_backward.default, floats(4, 8), [4, 8, 3], -1, 1),
    sample("d0 [d1] d2, d0 d2 -> d0 [d1] d2; 0 1", aten.select_scatter.default, floats(4, 3, 8), floats(4, 8), 1, 1),
    sample("d0 d1, d0 d1 -> d0 ([piece] d1); 0 1", aten.cat.default, [floats(4, 8), floats(4, 8)], -1),
    sample("d0 d1 -> d0 d1; 0", aten.cat.default, [floats(8, 4)]),
    sample("1 d1, 1 d1, 1 d1 -> [piece] d1; 0 1 2", aten.cat.default, [floats(1, 8), floats(1, 8), floats(1, 8)]),
    sample("d0 [p0], d0 1, d0 [p2] -> d0 [d1]; 0 1 2", aten.cat.default, [floats(4, 8), floats(4, 1), floats(4, 4)], 1),
    sample(
        "1, d0 [p1] d2, d0 [p2] d2 -> d0 [d1] d2; 0 1 2",
        aten.cat.default,
        [floats(0), floats(4, 4, 2), floats(4, 4, 2)],
        1,
    ),
    sample("d0 d1 [d2] -> d0 d1 [o2]; 0", aten.constant_pad_nd.default, floats(4, 8, 4), [1, 2]),
    sample("d0 [d1] d2 -> d0 [o1] d2; 0", aten.constant_pad_nd.default, floats(4, 8, 4), [0, 0, 1, -1], 0.0),
    sample("d0 [d1] -> d0 [o1]", aten.constant_pad_nd.default, floats(4, 8), [0, 2], 1.5),
    sample("d0 [d1] [d2] -> d0 [diagonal]; 0", aten.diagonal.default, floats(4, 8, 8), 1, -2, -1),
    sample("d1 [diagonal] -> [d0] d1 [d2]; 0", aten.diagonal_backward.default, floats(8, 4), [4, 8, 4], 0, 0, 2),
    sample(
        "d0 [d1] [d2], d0 [diagonal] -> d0 [d1] [d2]; 0 1",
        aten.diagonal_scatter.default,
        floats(4, 4, 8),
        floats(4, 4),
        1,
        1,
        2,
    ),
    sample("d0 [d1] [d2] -> d0 [d1] [d2]; 0", aten.tril.default, floats(4, 4, 4)),
    sample("d0 d1 [d2] [d3] -> d0 d1 [d2] [d3]; 0", aten.triu.default, floats(2, 4, 4, 6), 1),
)
