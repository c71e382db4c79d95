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

from collections.abc import Mapping, Sequence
from math import log, prod, sqrt

_FORWARD, _INPUT_GRADIENT, _WEIGHT_GRADIENT = "XWY", "GWD", "XGV"
"""The matrices of Y = X W, D = G W' and V = X' G, where G, D and V are the gradients of Y, X and W."""

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


def training_words(
    m: int, n: int, k: int, ranks: int, *, input_gradient: bool = True, weight_gradient: bool = True
) -> float:
    """The words that a rank moves for Y = X W and its backward products D = G W' and V = X' G together, at least.

    What is gathered of X, W and G is kept and serves two products. With Q = m n k / P and the parts x, w, g read and
    y, d, v written of the six matrices, the bound is

        min x + w + g + y + d + v    where  x w y >= Q^2,  g w d >= Q^2,  x g v >= Q^2,
                                            x, d >= m k / P;  w, v >= k n / P;  g, y >= m n / P

    less the 2 (m k + k n + m n) / P words that the rank owns. Any multipliers bound the minimum from below, so the
    result is a bound however well they were found. At most twice `forward_words`; up to 13 % below the best bricks.
    A product whose gradient nobody takes is left out.
    """
    products = [_FORWARD]
    products += [_INPUT_GRADIENT] * input_gradient + [_WEIGHT_GRADIENT] * weight_gradient
    size = {"X": m * k, "W": k * n, "Y": m * n, "D": m * k, "V": k * n, "G": m * n}
    owned = {name: size[name] / ranks for product in products for name in product}
    return max(0.0, _least_sum(owned, products, (m * n * k / ranks) ** 2) - sum(owned.values()))


def brick_words(m: int, n: int, k: int, brick: tuple[int, int, int]) -> float:
    """The forward words of a rank where m, n and k are cut in `brick` = (p, q, r) parts, P = p q r.

    X is gathered over the q ranks that share its rows, W over p, and Y is reduce-scattered over r. With the backward
    products on the same bricks, and what was gathered kept, twice that.
    """
    p, q, r = brick
    ranks = p * q * r
    return ((q - 1) * m * k + (p - 1) * k * n + (r - 1) * m * n) / ranks


def _least_sum(floors: Mapping[str, float], products: Sequence[str], goal: float) -> float:
    """A lower bound of the least sum of numbers above their floors, each of the products of them at least `goal`.

    In the logs u of the numbers this is convex. With multipliers l >= 0 for the products the sum is at least

        log(goal) sum(l) + sum(min over u_i >= f_i of exp(u_i) - c_i u_i),   c_i = sum of l over products with i,

    where the minimum is at exp(u_i) = max(floor_i, c_i). It is concave in l: one multiplier after the other is set to
    its best value, where its product is just reached.
    """
    multipliers = dict.fromkeys(products, 0.0)
    largest = 8 * (sum(floors.values()) + goal ** (1 / 3))

    def weight(name: str) -> float:
        return sum(own for product, own in multipliers.items() if name in product)

    for _ in range(_SWEEPS):
        moved = 0.0
        for product, before in list(multipliers.items()):
            rest = [(floors[name], weight(name) - before) for name in product]
            low, high = 0.0, largest
            for _ in range(_HALVINGS):
                tried = (low + high) / 2
                reached = prod(max(floor, tried + other) for floor, other in rest)
                low, high = (low, tried) if reached > goal else (tried, high)
            moved = max(moved, abs(low - before))
            multipliers[product] = low
        if moved <= _SETTLED * largest:
            break
    weights = {name: weight(name) for name in floors}
    numbers = {name: max(floor, weights[name]) for name, floor in floors.items()}
    return log(goal) * sum(multipliers.values()) + sum(numbers[i] - weights[i] * log(numbers[i]) for i in floors)
