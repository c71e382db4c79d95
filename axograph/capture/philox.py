"""Philox-4x32-10, a generator of random numbers without state: a function from a counter and a key to four words.

After Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11). cuRAND has it too, and torch
on CUDA. Words of 32 bits are computed in i64, so that the same numbers come out on every device.
"""

from __future__ import annotations

import torch

ROUNDS = 10
_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85
"""What the key grows by in each round: the golden ratio and the root of 3 less 1, as in the paper."""


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor | int, torch.Tensor | int],
    key: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Four words, i64 of 0..2**32-1. The first two of the counter have one shape; those of the key broadcast to it."""
    c0: torch.Tensor | int
    c1: torch.Tensor | int
    c2: torch.Tensor | int
    c3: torch.Tensor | int
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The product of two words may overflow; both its halves are in the i64 that is left, the upper one with a sign.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = p1 >> 32
        c0 ^= c1
        c0 ^= k0
        c0 &= _LOW
        c2 = p0 >> 32
        c2 ^= c3
        c2 ^= k1
        c2 &= _LOW
        c1, c3 = p1, p0  # only their lower halves matter: they are not multiplied before they are cut
        k0, k1 = (k0 + _STEPS[0]) & _LOW, (k1 + _STEPS[1]) & _LOW
    words = (c0, c1 & _LOW, c2, c3 & _LOW)
    assert all(isinstance(word, torch.Tensor) for word in words)
    return words  # type: ignore[return-value]
