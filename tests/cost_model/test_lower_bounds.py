"""Lower bounds: their regimes, that no grid goes below them, and that duality leaves no gap."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import minimize

from axograph.cost_model.lower_bounds import brick_words, forward_words, training_words

LLAMA_3_8B = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""(n, k) of the products of one layer."""


def bricks(ranks: int) -> list[tuple[int, int, int]]:
    found = []
    for p in range(1, ranks + 1):
        for q in range(1, ranks // p + 1):
            if ranks % (p * q) == 0:
                found.append((p, q, ranks // (p * q)))
    return found


@pytest.mark.parametrize(
    ("shape", "ranks", "words"),
    [
        # one dim cut: the smaller matrix, but for a rank's own part
        ((64, 4, 2), 8, 8 * (1 - 1 / 8)),
        # two dims cut: 2 sqrt(a b c^2 / P) + a b / P less what is owned
        ((64, 64, 4), 16, 2 * 64 - 2 * 64 * 4 / 16),
        # three dims cut: 3 (m n k / P)^(2/3) less what is owned
        ((64, 64, 64), 64, 3 * (16**2 - 8**2)),
        ((64, 64, 64), 1, 0),
    ],
)
def test_each_regime_as_by_hand(shape: tuple[int, int, int], ranks: int, words: float) -> None:
    for m, n, k in (shape, shape[::-1], (shape[1], shape[2], shape[0])):
        assert forward_words(m, n, k, ranks) == pytest.approx(words, rel=1e-12)


def test_the_forward_bound_is_attained_by_cubes() -> None:
    assert forward_words(64, 64, 64, 64) == pytest.approx(brick_words(64, 64, 64, (4, 4, 4)), rel=1e-12)
    assert forward_words(512, 8, 16, 8) == pytest.approx(brick_words(512, 8, 16, (8, 1, 1)), rel=1e-12)
    assert min(brick_words(96, 96, 4, b) for b in bricks(9)) == pytest.approx(forward_words(96, 96, 4, 9), rel=1e-12)


@pytest.mark.parametrize("m", [64, 65536])
@pytest.mark.parametrize("nk", [(64, 64), (4096, 1024), (300, 70), (16, 8192)], ids=str)
def test_no_grid_moves_less(m: int, nk: tuple[int, int]) -> None:
    n, k = nk
    for ranks in (2, 60, 512):
        best = min(brick_words(m, n, k, b) for b in bricks(ranks))
        assert forward_words(m, n, k, ranks) <= best * (1 + 1e-12)
        both = training_words(m, n, k, ranks)
        assert both <= 2 * forward_words(m, n, k, ranks) * (1 + 1e-9)
        assert both >= forward_words(m, n, k, ranks)


@pytest.mark.parametrize("shape", [(64, 64, 64), (8192, 28672, 4096), (65536, 4096, 14336), (300, 17, 5000)], ids=str)
@pytest.mark.parametrize("ranks", [4, 64, 512])
def test_primal_and_dual_meet(shape: tuple[int, int, int], ranks: int) -> None:
    m, n, k = shape
    owned = [m * k / ranks, k * n / ranks, m * n / ranks] * 2
    scale = sum(owned)
    q = m * n * k / ranks
    products = ((0, 1, 5), (3, 1, 2), (0, 4, 2))
    found = minimize(
        lambda u: sum(math.exp(v) for v in u) / scale,
        [max(math.log(f), 2 / 3 * math.log(q)) for f in owned],
        jac=lambda u: [math.exp(v) / scale for v in u],
        bounds=[(math.log(f), None) for f in owned],
        constraints=[{"type": "ineq", "fun": lambda u, p=p: sum(u[i] for i in p) - 2 * math.log(q)} for p in products],
        options={"ftol": 1e-15, "maxiter": 500},
    )
    primal = found.fun * scale - scale
    assert training_words(*shape, ranks) == pytest.approx(primal, rel=1e-6, abs=1e-9 * scale)


@pytest.mark.parametrize("shape", [(64, 64, 64), (4096, 512, 64), (300, 17, 5000)], ids=str)
def test_what_is_not_asked_for_is_not_counted(shape: tuple[int, int, int]) -> None:
    for ranks in (2, 16, 512):
        assert training_words(*shape, ranks, input_gradient=False, weight_gradient=False) == pytest.approx(
            forward_words(*shape, ranks), rel=1e-9
        )
        without = training_words(*shape, ranks, input_gradient=False)
        assert forward_words(*shape, ranks) * (1 - 1e-9) <= without <= training_words(*shape, ranks) * (1 + 1e-9)


def test_the_cube_moves_what_the_closed_form_says() -> None:
    side, ranks = 4096, 512
    accessed = 9 * 2 ** (-2 / 3) * (side**3 / ranks) ** (2 / 3)
    assert training_words(side, side, side, ranks) == pytest.approx(accessed - 6 * side**2 / ranks, rel=1e-9)


@pytest.mark.parametrize(
    ("tokens", "ranks", "words", "percent"),
    [
        (8192, 8, 1.251e8, 88),
        (8192, 64, 5.345e7, 89),
        (8192, 512, 1.644e7, 91),
        (65536, 8, 3.238e8, 98),
        (65536, 64, 1.729e8, 91),
        (65536, 512, 5.941e7, 90),
        (524288, 8, 3.817e8, 100),
        (524288, 64, 3.715e8, 98),
        (524288, 512, 1.788e8, 91),
    ],
)
def test_a_layer_of_llama(tokens: int, ranks: int, words: float, percent: int) -> None:
    bound = sum(training_words(tokens, n, k, ranks) for n, k in LLAMA_3_8B.values())
    best = sum(min(2 * brick_words(tokens, n, k, b) for b in bricks(ranks)) for n, k in LLAMA_3_8B.values())
    assert bound == pytest.approx(words, rel=5e-4)
    assert round(100 * bound / best) == percent
