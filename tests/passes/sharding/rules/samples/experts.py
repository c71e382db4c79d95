"""The products of a mixture of experts."""

from __future__ import annotations

import torch

from axograph.passes import expert_products  # noqa: F401 - defines the operators
from tests.passes.sharding.rules.one_operator import Sample, floats, integers, sample

axograph = torch.ops.axograph

SAMPLES: list[Sample] = [
    sample(
        "t k, e k n, t -> t n; 0; 1",
        axograph.expert_mm.default, floats(16, 8), floats(8, 8, 4), integers(8, 16),
    ),
    sample(
        "t k, e k n, t -> t n; 0; 1",
        axograph.expert_mm.default, floats(6, 3), floats(6, 3, 5), integers(6, 6), divided={1: (3, 2, 3, 5)},
    ),
    sample(
        "t k, t n, t -> e k n; 0; 1",
        axograph.expert_outer.default, floats(5, 3), floats(5, 4), integers(3, 5), 3,
    ),
    sample(
        "t k, t n, t -> e k n; 0; 1",
        axograph.expert_outer.default, floats(16, 8), floats(16, 4), integers(8, 16), 8,
    ),
]  # fmt: skip
