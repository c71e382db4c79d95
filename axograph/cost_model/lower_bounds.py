"""Certified lower bounds on the words that a matmul moves, and what a grid of bricks moves.

Y (m x n) = X (m x k) W (k x n) on P ranks: the classical algorithm, the same share m n k / P of multiplications on each
rank, one copy of every operand and result, over all ranks, before and after. A word is an element. A rank needs
certain parts of the three matrices for its share, and owns some of them: the difference is moved. What it needs
follows from the inequality of Loomis and Whitney: parts x, w, y of X, W, Y take part in at most sqrt(x w y) products.

Forward: Al Daas, Ballard, Grigori, Kumar, Rouse, "Tight memory-independent parallel matrix multiplication
communication lower bounds", SPAA 2022 (arXiv 2205.13407). Forward and backward: the same inequality for three products
that share what they gather, bounded by Lagrange duality.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod, sqrt

_PRODUCTS = ((0, 1, 5), (3, 1, 2), (0, 4, 2))
"""For Y = X W, dX = dY W' and dW = X' dY the numbers of their matrices among X, W, dY (read), dX, dW, Y (written)."""

_SWEEPS = 200
"""The most sweeps over the multipliers; ending early leaves a valid bound."""

_HALVINGS = 48

_SETTLED = 1e-9
"""How little multipliers move once they are found: what is lost of the bound is of the order of its square."""


def forward_words(m: int, n: int, k: int, ranks: int) -> float:
    """The words that a rank moves for Y = X W, on average over ranks, at least. Tight where the grid divides.

    Few ranks move the smallest matrix (one dim cut), more of them parts of two (two dims cut), many of all three.

    >>> round(forward_words(4096, 4096, 4096, 64)), 3 * 4096**2 // 16 - 3 * 4096**2 // 64
    (2359296, 2359296)
    """
    a, b, c = sorted((m, n, k), reverse=True)
    if ranks <= a / b:
        needed = (a * b + a * c) / ranks + b * c
    elif ranks <= a * b / c**2:
        needed = 2 * c * sqrt(a * b / ranks) + a * b / ranks
    else:
        needed = 3 * (a * b * c / ranks) ** (2 / 3)
    return max(0.0, needed - (m * k + k * n + m * n) / ranks)


def training_words(m: int, n: int, k: int, ranks: int) -> float:
    """The words that a rank moves for Y = X W, dX = dY W' and dW = X' dY together, at least.

    What is gathered of X, W and dY is kept and serves two products. With Q = m n k / P and the parts x, w, g read of
    X, W, dY and d, v, y written of dX, dW, Y, the bound is

        min x + w + g + d + v + y    where  x w y >= Q^2,  d w g >= Q^2,  x v g >= Q^2,
                                            x, d >= m k / P;  w, v >= k n / P;  g, y >= m n / P

    less the 2 (m k + k n + m n) / P words that the rank owns. Any multipliers bound the minimum from below, so the
    result is a bound however well they were found. At most twice `forward_words`; up to 13 % below the best bricks.
    """
    owned = [m * k / ranks, k * n / ranks, m * n / ranks] * 2
    return max(0.0, _least_sum(owned, (m * n * k / ranks) ** 2) - sum(owned))


def brick_words(m: int, n: int, k: int, brick: tuple[int, int, int]) -> float:
    """The forward words of a rank where m, n and k are cut in `brick` = (p, q, r) parts, P = p q r.

    X is gathered over the q ranks that share its rows, W over p, and Y is reduce-scattered over r. With the backward
    products on the same bricks, and what was gathered kept, twice that.
    """
    p, q, r = brick
    ranks = p * q * r
    return ((q - 1) * m * k + (p - 1) * k * n + (r - 1) * m * n) / ranks


def _least_sum(floors: Sequence[float], goal: float) -> float:
    """A lower bound of the least sum of numbers above their floors, each product of three of them at least `goal`.

    In the logs u of the numbers this is convex. With multipliers l >= 0 for the products the sum is at least

        log(goal) sum(l) + sum(min over u_i >= f_i of exp(u_i) - c_i u_i),   c_i = sum of l over products with i,

    where the minimum is at exp(u_i) = max(floor_i, c_i). It is concave in l: one multiplier after the other is set to
    its best value, where its product is just reached.
    """
    multipliers = [0.0] * len(_PRODUCTS)
    largest = 8 * (sum(floors) + goal ** (1 / 3))
    for _ in range(_SWEEPS):
        moved = 0.0
        for j, product in enumerate(_PRODUCTS):
            weights = _weights(multipliers)
            rest = [(floors[i], weights[i] - multipliers[j]) for i in product]
            low, high = 0.0, largest
            for _ in range(_HALVINGS):
                tried = (low + high) / 2
                reached = prod(max(floor, tried + other) for floor, other in rest)
                low, high = (low, tried) if reached > goal else (tried, high)
            moved = max(moved, abs(low - multipliers[j]))
            multipliers[j] = low
        if moved <= _SETTLED * largest:
            break
    numbers = [max(floor, weight) for floor, weight in zip(floors, _weights(multipliers), strict=True)]
    rest_of_sum = sum(x - c * log(x) for x, c in zip(numbers, _weights(multipliers), strict=True))
    return log(goal) * sum(multipliers) + rest_of_sum


def _weights(multipliers: Sequence[float]) -> list[float]:
    """For each matrix, the sum of the multipliers of its products."""
    return [sum(own for own, product in zip(multipliers, _PRODUCTS, strict=True) if i in product) for i in range(6)]
