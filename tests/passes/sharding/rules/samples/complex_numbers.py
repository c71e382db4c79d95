"""Samples of complex numbers and Fourier transforms."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import floats, sample

aten = torch.ops.aten
_NUMBERS = floats(4, 8, dtype=torch.complex128)

SAMPLES = (
    sample("d0 d1 [pair] -> d0 d1; 0", aten.view_as_complex.default, floats(4, 8, 2)),
    sample("d0 d1 -> d0 d1 [pair]; 0", aten.view_as_real.default, _NUMBERS),
    sample("d0 d1, d1 -> d0 d1; 0 1", aten.complex.default, floats(4, 8), floats(8)),
    sample("d0 d1, d0 d1 -> d0 d1", aten.polar.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d1 -> d0 d1", aten.mul.Tensor, _NUMBERS, floats(8, dtype=torch.complex128)),
    sample("d0 [d1] -> d0 [o1]", aten._fft_c2c.default, _NUMBERS, [1], 0, True),
    sample("d0 [d1] -> d0 [o1]", aten._fft_c2r.default, _NUMBERS, [1], 2, 14),
    sample("d0 [d1] -> d0 [o1]; 0", aten._fft_r2c.default, floats(4, 8), [1], 0, True),
)
