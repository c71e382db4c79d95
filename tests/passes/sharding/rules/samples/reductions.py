"""Samples of reductions and of operators that work along a dim."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import booleans, floats, integers, positive, sample

aten = torch.ops.aten

SAMPLES = (
    sample("d0 d1 d2 -> d0 d2; 0", aten.sum.dim_IntList, floats(4, 8, 4), [1]),
    sample("d0 d1 d2 -> 1 d1 1; 0", aten.sum.dim_IntList, floats(4, 8, 4), [0, -1], True),
    sample("d0 d1 -> ; 0", aten.sum.dim_IntList, floats(4, 8), None),
    sample("d0 d1 -> 1 1; 0", aten.sum.dim_IntList, floats(4, 8), [], True),
    sample("d0 d1 -> d0", aten.sum.dim_IntList, booleans(4, 8), [1]),
    sample("d0 d1 -> d1", aten.sum.dim_IntList, integers(9, 4, 8), [0], dtype=torch.float64),
    sample(" -> ; 0", aten.sum.dim_IntList, floats(), []),
    sample("d0 d1 -> d1; 0", aten.sum.dim_IntList, floats(48, 4), [0], divided={0: (3, 4, 4, 4)}),
    sample("d0 d1 d2 -> d0 d2; 0", aten.mean.dim, floats(4, 8, 4), [1]),
    sample("d0 d1 -> d0 1; 0", aten.mean.dim, floats(4, 8), [-1], True),
    sample("d0 d1 -> ; 0", aten.mean.dim, floats(4, 8), None),
    sample("d0 d1 -> d0", aten.amax.default, floats(4, 8), [-1]),
    sample("d0 d1 -> 1 1", aten.amax.default, integers(99, 4, 8), [0, 1], True),
    sample("d0 [d1] -> d0", aten.amin.default, floats(4, 8), [-1]),
    sample("d0 d1 -> d0", aten.logsumexp.default, floats(4, 8), [-1]),
    sample("d0 d1 d2 -> 1 1 d2", aten.logsumexp.default, floats(4, 8, 4), [0, 1], True),
    sample("d0 d1 -> ", aten.linalg_vector_norm.default, floats(4, 8)),
    sample("d0 d1 -> d0 1", aten.linalg_vector_norm.default, floats(4, 8), 3, [1], True),
    sample("d0 d1 -> d0", aten.linalg_vector_norm.default, floats(4, 8), float("inf"), [-1]),
    sample("d0 [d1] -> d0", aten.linalg_vector_norm.default, floats(4, 8), 0, [-1]),
    sample("d0 [d1] -> d0 [o1]; 0", aten.cumsum.default, floats(4, 8), -1),
    sample("[d0] d1 -> [o0] d1", aten.cumsum.default, integers(9, 4, 8), 0),
    sample("[d0] d1 [d2] -> [o0] d1 [o2]; 0", aten.flip.default, floats(4, 8, 2), [0, -1]),
    sample("d0 [d1] -> d0 [o1]; 0", aten.roll.default, floats(4, 8), [1], [1]),
    sample("[d0] [d1] -> [o0] [o1]; 0", aten.roll.default, floats(4, 8), [3]),
    sample("[d0] d1 -> [o0] d1", aten.cumprod.default, floats(4, 8), 0),
    sample("[d0] d1 -> [o0] d1, [o0] d1", aten.cummax.default, floats(4, 8), 0),
    sample("d0 [d1] -> d0 [o1], d0 [o1]", aten.cummin.default, floats(4, 8), 1),
    sample("d0 [d1] -> d0 [o1]", aten.logcumsumexp.default, floats(4, 8), 1),
    sample("d0 [d1] -> d0", aten.argmax.default, floats(4, 8), -1),
    sample("[d0] [d1] -> ", aten.argmax.default, floats(4, 8)),
    sample("[d0] d1 -> 1 d1", aten.argmin.default, floats(4, 8), 0, True),
    sample("d0 [d1] -> d0, d0", aten.max.dim, floats(4, 8), 1),
    sample("[d0] d1 -> 1 d1, 1 d1", aten.min.dim, floats(4, 8), 0, True),
    sample("[d0] d1 -> d1, d1", aten.median.dim, floats(4, 8), 0),
    sample("d0 [d1] -> d0, d0", aten.mode.default, integers(3, 4, 8), 1),
    sample("d0 [d1] -> d0, d0", aten.kthvalue.default, floats(4, 8), 3),
    sample("d0 [d1] -> d0 [o1], d0 [o1]", aten.sort.default, floats(4, 8)),
    sample("[d0] d1 -> [o0] d1, [o0] d1", aten.sort.stable, integers(3, 4, 8), stable=True, dim=0),
    sample("d0 [d1] -> d0 [o1], d0 [o1]", aten.topk.default, floats(4, 8), 3),
    sample("[d0] d1 -> 1 d1, 1 d1", aten.topk.default, floats(8, 4), 1, 0),
    sample("[d0] [d1] -> ", aten.any.default, booleans(4, 8)),
    sample("d0 [d1] -> d0", aten.any.dim, booleans(4, 8), 1),
    sample("[d0] d1 [d2] -> d1", aten.any.dims, booleans(4, 8, 2), [0, 2]),
    sample("[d0] [d1] -> ", aten.all.default, booleans(4, 8)),
    sample("[d0] d1 -> 1 d1", aten.all.dim, booleans(4, 8), 0, True),
    sample("[d0] d1 -> d1", aten.all.dims, booleans(4, 8), [0]),
    sample("[d0] [d1] -> ", aten.prod.default, floats(4, 8)),
    sample("d0 [d1] -> d0", aten.prod.dim_int, floats(4, 8), 1),
    sample("d0 [d1] -> d0", aten.var.correction, floats(4, 8), [1], correction=1),
    sample("[d0] [d1] -> ", aten.std.correction, positive(4, 8), None, correction=0),
    sample("d0 [d1] -> d0 1, d0 1", aten.var_mean.correction, floats(4, 8), [-1], keepdim=True),
)
