"""Samples of lookups and of indexing with tensors."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import floats, integers, sample

aten = torch.ops.aten

SAMPLES = (
    sample("d0 d1, i0 i1 -> i0 i1 d1; 0", aten.embedding.default, floats(16, 4), integers(16, 4, 8)),
    sample(
        "d0 d1, i0 -> i0 d1; 0", aten.embedding.default, floats(24, 4), integers(24, 4), 3, divided={0: (2, 3, 4, 4)}
    ),
    sample(
        "d0 d1, 1 i1 -> 1 i1 d1; 0", aten.embedding.default, floats(24, 8), integers(24, 1, 4), divided={0: (8, 3, 8)}
    ),
    sample("d0 d1,  -> d1; 0", aten.embedding.default, floats(8, 4), integers(8)),
    sample(
        "i0 i1 d1, i0 i1 -> d0 d1; 0",
        aten.embedding_dense_backward.default,
        floats(4, 8, 4),
        integers(16, 4, 8),
        16,
        -1,
        False,
    ),
    sample("i0 d1, i0 -> d0 d1; 0", aten.embedding_dense_backward.default, floats(16, 4), integers(8, 16), 8, 2, False),
    sample(
        "[i0] d1, [i0] -> [d0] d1; 0", aten.embedding_dense_backward.default, floats(16, 4), integers(8, 16), 8, 2, True
    ),
    sample("d0 d1 d2, i0 -> d0 i0 d2; 0", aten.index_select.default, floats(8, 16, 2), 1, integers(16, 4)),
    sample("d0 d1, 1 -> d0 1; 0", aten.index_select.default, floats(8, 4), -1, integers(4, 1)),
    sample(
        "d0 d1 d2, [i0], d0 [i0] d2 -> d0 d1 d2; 0 2",
        aten.index_add.default,
        floats(4, 8, 2),
        1,
        integers(8, 4),
        floats(4, 4, 2),
    ),
    sample(
        "d0 d1, [i0], [i0] d1 -> d0 d1; 0 2",
        aten.index_add.default,
        floats(8, 4),
        0,
        integers(8, 4),
        floats(4, 4),
        alpha=2,
    ),
    sample("d0 d1, d0 1 -> d0 1; 0", aten.gather.default, floats(4, 16), 1, integers(16, 4, 1)),
    sample("d0 d1, d0 i1 -> d0 i1; 0", aten.gather.default, floats(4, 16), -1, integers(16, 4, 8)),
    sample(
        "d0 d1, d0 1 -> d0 1; 0", aten.gather.default, floats(4, 24), -1, integers(24, 4, 1), divided={0: (4, 4, 3, 2)}
    ),
    sample("[d0] [d1], [i0] 1 -> [i0] 1; 0", aten.gather.default, floats(8, 16), 1, integers(16, 4, 1)),
    sample("1 d1, 1 i1 -> 1 i1", aten.gather.default, integers(9, 1, 16), 1, integers(16, 1, 4)),
    sample("d0 d1, 1 d1 -> 1 d1; 0", aten.gather.default, floats(16, 4), 0, integers(16, 1, 4)),
    sample(",  -> ; 0", aten.gather.default, floats(), 0, integers(1)),
    sample("d0 d1, d0 1 -> d0 d1", aten.scatter.value, floats(4, 16), 1, integers(16, 4, 1), -1.0),
    sample("d0 [d1], d0 [i1] -> d0 [d1]", aten.scatter.value, floats(4, 16), 1, integers(16, 4, 2), -1.0),
    sample("[d0] [d1], 1 [i1] -> [d0] [d1]", aten.scatter.value, floats(16, 8), 0, integers(16, 1, 4), 0),
    sample("d0 d1, d0 1, d0 1 -> d0 d1; 0 2", aten.scatter.src, floats(4, 16), -1, integers(16, 4, 1), floats(4, 1)),
    sample("1 d1, 1 1, 1 1 -> 1 d1; 0 2", aten.scatter.src, floats(1, 16), 1, integers(16, 1, 1), floats(1, 1)),
    sample(
        "d0 d1, d0 [i1], d0 [i1] -> d0 d1; 0 2",
        aten.scatter_add.default,
        floats(4, 8),
        1,
        integers(8, 4, 16),
        floats(4, 16),
    ),
    sample(
        "d0 d1, 1 d1, 1 d1 -> d0 d1; 0 2", aten.scatter_add.default, floats(8, 4), 0, integers(8, 1, 4), floats(1, 4)
    ),
    sample(
        "[d0] [d1], [i0] [i1], [i0] [i1] -> [d0] [d1]; 0 2",
        aten.scatter_add.default,
        floats(8, 4),
        0,
        integers(8, 4, 4),
        floats(8, 4),
    ),
    sample("[d0] d1 d2, i0 -> i0 d1 d2; 0", aten.index.Tensor, floats(8, 4, 4), [integers(8, 4)]),
    sample("d0 [d1] d2, i0 -> d0 i0 d2; 0", aten.index.Tensor, floats(8, 4, 4), [None, integers(4, 8)]),
    sample(
        "[d0] [d1] d2, i0 1, i1 -> i0 i1 d2; 0", aten.index.Tensor, floats(8, 4, 4), [integers(8, 4, 1), integers(4, 8)]
    ),
    sample(
        "d0 [d1] [d2] d3, i0, i0 -> d0 i0 d3; 0",
        aten.index.Tensor,
        floats(4, 2, 8, 3),
        [None, integers(2, 4), integers(8, 4)],
    ),
    sample(
        "[d0] d1 [d2], i0, i0 -> i0 d1; 0", aten.index.Tensor, floats(8, 4, 8), [integers(8, 4), None, integers(8, 4)]
    ),
    sample("[d0],  -> ", aten.index.Tensor, integers(9, 8), [integers(8)]),
    sample(
        "d0 d1 [d2] [d3], i0 1, i1 -> d0 d1 i0 i1; 0",
        aten._unsafe_index.Tensor,
        floats(4, 8, 3, 3),
        [None, None, integers(3, 4, 1), integers(3, 8)],
    ),
    sample(
        "[d0] d1, [i0], [i0] d1 -> [d0] d1; 0 2",
        aten.index_put.default,
        floats(8, 4),
        [integers(8, 4)],
        floats(4, 4),
        True,
    ),
    sample(
        "d0 [d1], [i0], 1 [i0] -> d0 [d1]; 0 2",
        aten.index_put.default,
        floats(8, 4),
        [None, integers(4, 8)],
        floats(1, 8),
        True,
    ),
    sample("[d0] d1, 1, d1 -> [d0] d1; 0 2", aten.index_put.default, floats(8, 4), [integers(8, 1), None], floats(4)),
    sample(
        "d0 d1 [d2] [d3], [i0] 1, [i1], d0 d1 [i0] [i1] -> d0 d1 [d2] [d3]; 0 3",
        aten._unsafe_index_put.default,
        floats(4, 8, 3, 3),
        [None, None, integers(3, 4, 1), integers(3, 8)],
        floats(4, 8, 4, 8),
        True,
    ),
    *(
        sample(
            "d0 [d1], d0 [i1], d0 [i1] -> d0 [d1]",
            aten.scatter_reduce.two,
            floats(4, 8),
            1,
            integers(8, 4, 6),
            floats(4, 6),
            reduce,
            include_self=reduce != "mean",
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
    ),
)
