"""Operators that draw give numbers of their distributions, other ones in every call, the same ones from one seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import axograph
from axograph.errors import AxographError
from tests.masked import Masked

ROWS, COLUMNS = 200, 100
COUNT = ROWS * COLUMNS

Draw = Callable[[torch.Tensor], torch.Tensor]


def _scattered(x: torch.Tensor) -> torch.Tensor:
    """Probabilities of 0.3, as a tensor."""
    return 0 * x + 0.3


def _gumbel(x: torch.Tensor) -> torch.Tensor:
    return -torch.empty_like(x).exponential_().log()


UNIFORM, NORMAL = (0.5, 1 / 12), (0.0, 1.0)
DRAWS: dict[str, tuple[Draw, float, float]] = {
    "dropout": (lambda x: F.dropout(1 + 0 * x, 0.2), 1, 0.25),
    "dropout of all": (lambda x: F.dropout(1 + 0 * x, 1.0), 0, 0),
    "feature dropout": (lambda x: F.dropout1d((1 + 0 * x)[:, :, None], 0.2)[:, :, 0], 1, 0.25),
    "alpha dropout": (lambda x: F.alpha_dropout(x, 0.2, True), 0, 1),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_ of a tensor": (lambda x: torch.empty_like(x).bernoulli_(_scattered(x)), 0.3, 0.21),
    "bernoulli": (lambda x: torch.bernoulli(_scattered(x)), 0.3, 0.21),
    "rand": (lambda x: torch.rand(x.shape), *UNIFORM),
    "rand_like": (torch.rand_like, *UNIFORM),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1, 16 / 12),
    "randn": (lambda x: torch.randn(x.shape), *NORMAL),
    "randn_like": (torch.randn_like, *NORMAL),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 3), 2, 9),
    "normal": (lambda x: torch.normal(2.0, 3.0, x.shape), 2, 9),
    "normal around": (lambda x: torch.normal(0 * x + 2, 3.0), 2, 9),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "gumbel noise": (_gumbel, 0.5772156649, math.pi**2 / 6),
    "log_normal_": (lambda x: torch.empty_like(x).log_normal_(0, 0.5), 1.1331484531, 0.3646958540),
    "randint": (lambda x: torch.randint(2, 7, x.shape).to(x.dtype), 4, 2),
    "randint_like": (lambda x: torch.randint_like(x.detach(), 5), 2, 2),
    "rrelu": (lambda x: F.rrelu(0 * x - 1, 0.1, 0.3, training=True), -0.2, 0.04 / 12),
}  # fmt: skip
"""Each with the mean and the variance of what it draws. `x` is normal."""


class Drawing(nn.Module):
    """All draws."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: draw(self.weight * x) for name, (draw, _, _) in DRAWS.items()}


@pytest.fixture(scope="module")
def calls() -> list[dict[str, torch.Tensor]]:
    """What two calls after one seed, and one after it again, draw."""
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    module = axograph.parallelize(Drawing(), grid=(1, 1, 1, 1))
    torch.manual_seed(4)
    found = [module(x), module(x)]
    torch.manual_seed(4)
    return [*found, module(x)]


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_has_its_mean_and_variance(name: str, calls: list[dict[str, torch.Tensor]]) -> None:
    _, mean, variance = DRAWS[name]
    first, second, again = (call[name].detach().double() for call in calls)
    assert torch.equal(first, again)
    assert first.isfinite().all()
    assert abs(first.mean().item() - mean) <= 5 * math.sqrt(variance / COUNT)
    assert abs(first.var().item() - variance) <= 0.06 * variance
    assert variance == 0 or not torch.equal(first, second)


class Recurrent(nn.Module):
    """Two layers with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 3, 2, batch_first=True, dropout=0.5).double()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        made: tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] = self.layers(x)
        return made


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
def test_dropout_between_recurrent_layers_is_not_lost() -> None:
    """Torch traces the layers as one operator, in which its own decomposition leaves the dropout out."""
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(8, 2, 4, dtype=torch.float64)
    module = axograph.parallelize(model, grid=(1, 1, 1, 1))
    torch.manual_seed(3)
    found, (state, cell) = module(x)
    torch.manual_seed(3)
    with Masked() as masked:
        mask = masked.mask((8, 2, 3), 0.5)
    layers = [nn.LSTM(size, 3, batch_first=True).double() for size in (4, 3)]
    for i, layer in enumerate(layers):
        names = {name: name.replace("_l0", f"_l{i}") for name in layer.state_dict()}
        layer.load_state_dict({name: model.layers.state_dict()[other] for name, other in names.items()})
    between, (first, _) = layers[0](x)
    expected, (second, last) = layers[1](between * mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(state, torch.cat([first, second]), rtol=0, atol=1e-9)
    torch.testing.assert_close(cell[1:], last, rtol=0, atol=1e-9)


class Refused(nn.Module):
    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 4), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(self.layer(x))


@pytest.mark.parametrize(
    ("draw", "remedy"),
    [
        (lambda x: x[torch.randperm(4)], r"randperm.*try    torch\.rand\(n\)\.argsort\(\)"),
        (lambda x: x + torch.rand(4, 4, generator=torch.Generator()), r"aten\.rand\.generator.*without generator="),
        (
            lambda x: x + torch.empty_like(x).geometric_(0.3),
            r"geometric.*given  test_draws\.py:\d+.*pass it as an input",
        ),
    ],
)
def test_what_no_grid_can_repeat_is_refused_with_what_to_write_instead(draw: Draw, remedy: str) -> None:
    with pytest.raises(AxographError, match=f"(?s){remedy}"):
        axograph.parallelize(Refused(draw), grid=(2, 1, 1, 1))(torch.ones(4, 4))
