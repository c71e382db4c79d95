"""Random numbers: every part of them is the same as in the whole."""

from __future__ import annotations

import torch

from axograph.capture.draws import DRAW
from tests.passes.sharding.rules.one_operator import Sample, integers, sample

_CPU = torch.device("cpu")
_KEY = integers(2**62)

SAMPLES: list[Sample] = [
    sample(" -> d0 d1 d2", DRAW, _KEY, 3, None, [4, 8, 5], [40, 5, 1], "keep", 0.5, torch.bool, _CPU),
    sample(" -> d0 1 d2", DRAW, _KEY, 0, None, [6, 1, 3], [3, 3, 1], "uniform", 0.0, torch.float64, _CPU),
    sample(",  -> d0 d1", DRAW, _KEY, 1, integers(99), [8, 12], [30, 2], "normal", 0.0, torch.float64, _CPU),
]
