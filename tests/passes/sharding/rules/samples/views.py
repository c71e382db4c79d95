"""Samples of reshape, permute and expand."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import floats, integers, sample

aten = torch.ops.aten

SAMPLES = (
    sample("f0 f1 -> (f0 f1); 0", aten.reshape.default, floats(4, 8), [32]),
    sample("(f0 f1 f2) -> f0 f1 f2; 0", aten.reshape.default, floats(96), [3, 4, 8]),
    sample("(f0 f1) -> f0 f1; 0", aten.reshape.default, floats(96), [12, 8], divided={0: (3, 4, 8)}),
    sample("f0 1 (f1 f2) -> 1 f0 f1 f2; 0", aten.reshape.default, floats(8, 1, 4), [1, 8, 2, 2]),
    sample("(f0 [f1]) [f4] -> (f0 [f2]) [f3]; 0", aten.reshape.default, floats(6, 4), [4, 6]),
    sample("[f0] [f3] -> [f1] [f2]; 0", aten.reshape.default, floats(3, 4), [2, 6]),
    sample("f0 (f1 [f2]) [f4] -> f0 (f1 [f3]) [f5]; 0", aten.reshape.default, floats(4, 4, 9), [4, 6, 6]),
    sample("(f0 f1) f2 -> f0 f1 f2", aten.reshape.default, integers(9, 8, 4), [4, 2, 4]),
    sample("1 1 -> ; 0", aten.reshape.default, floats(1, 1), []),
    sample("[a0] [a1] -> [b0] [b1]", aten.reshape.default, floats(4, 0), [0, 8]),
    sample("d0 1 d2 -> d2 d0 1; 0", aten.permute.default, floats(4, 1, 8), [2, 0, 1]),
    sample("d0 d1 d2 -> d0 d2 d1; 0", aten.permute.default, floats(4, 2, 8), [0, -1, -2]),
    sample("d0 d1 -> d1 d0", aten.permute.default, integers(9, 4, 8), [1, 0]),
    sample("d0 1 d2 -> d0 d1 d2; 0", aten.expand.default, floats(4, 1, 8), [4, 8, 8]),
    sample("d1 -> d0 d1; 0", aten.expand.default, floats(8), [4, 8]),
    sample(" -> d0 d1; 0", aten.expand.default, floats(), [4, 4]),
)
