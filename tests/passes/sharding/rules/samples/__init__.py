"""Calls of every operator that has a rule, by the file of its rule."""

from __future__ import annotations

from tests.passes.sharding.rules.one_operator import Sample
from tests.passes.sharding.rules.samples import (
    attention,
    batches,
    complex_numbers,
    cuda_attention,
    draws,
    experts,
    lookups,
    matmuls,
    norms,
    pointwise,
    reductions,
    slices,
    views,
    windows,
)

SAMPLES: tuple[Sample, ...] = (
    *attention.SAMPLES,
    *batches.SAMPLES,
    *complex_numbers.SAMPLES,
    *draws.SAMPLES,
    *experts.SAMPLES,
    *lookups.SAMPLES,
    *matmuls.SAMPLES,
    *norms.SAMPLES,
    *pointwise.SAMPLES,
    *reductions.SAMPLES,
    *slices.SAMPLES,
    *views.SAMPLES,
    *windows.SAMPLES,
)

CUDA_SAMPLES = cuda_attention.CUDA_SAMPLES
