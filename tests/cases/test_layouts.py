"""Strides, views, writes in place, and blocks without gradients: what must survive in the graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.cases.same import (
    DATA2,
    X2,
    X3,
    X4,
    XY,
    XYZ,
    XZ,
    Y2,
    YZ,
    Z2,
    Z4,
    Z_DATA,
    assert_same,
    assert_tells_apart,
    made,
    mean_square,
    numbers,
)


class Strided(nn.Module):
    """Layers over the middle dim, slices, flips, and a parameter that is used transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last = nn.Linear(6, 6), nn.Linear(8, 8)
        self.matrix = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.middle(x.transpose(1, 2)).transpose(1, 2)
        h = self.last(h[..., ::2].repeat_interleave(2, -1)) + self.last(x.flip(-1))
        return (h @ self.matrix)[:, :, 4:12].permute(2, 0, 1), F.linear(h, self.matrix.t())


def test_transposed_and_sliced_tensors() -> None:
    """A collective lays out its result as if its input were contiguous, and the numbers are permuted.

    Inputs, parameters, activations and gradients are strided here. After
    https://github.com/pytorch/pytorch/issues/130251.
    """
    x = numbers(6, 4, 8).permute(1, 0, 2)
    assert_same(Strided, (x,), grids=[X2, Y2, Z2, Z4, DATA2, XYZ])

    def strided(outputs: Any) -> torch.Tensor:
        return (outputs[0].transpose(0, 1)[:, ::2].sum() * 2 + outputs[1].mT.cumsum(-1)).pow(2).mean()

    assert_same(Strided, (x,), grids=[X2, Z2], loss=strided)


class Folded(nn.Module):
    """Folds length and heads into the batch, and takes them apart in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 8), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, length, features = x.shape
        h = self.wide(x.reshape(batch * length, features)).view(batch, length, features)
        h = self.narrow(h.view(batch, length, 2, 4).transpose(1, 2).reshape(batch * 2, length, 4))
        h = h.view(batch, 2, length, 4).transpose(1, 2).flatten(2)
        turned = h.transpose(0, 1).reshape(length * batch, features).view(length, batch, features)
        return turned, h.flatten(), h.unflatten(0, (-1, 2)).sum(1)


def test_dims_that_are_flattened_and_taken_apart() -> None:
    """A flattened dim that two axes cut is taken apart with the second axis on the wrong dim.

    After https://github.com/pytorch/pytorch/issues/186282.
    """
    grids = [Z2, DATA2, Z_DATA, XZ, (2, 1, 2, 2), YZ, XY, Z4]
    assert_same(Folded, (numbers(8, 6, 8),), grids=grids)
    rows = torch.arange(8 * 6).view(8, 6)
    assert_tells_apart(rows.t().flatten(), torch.cat([part.t().flatten() for part in rows.chunk(2)]))


class Cast(nn.Module):
    """Casts and views that come first after a matmul, and values that leave the graph at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.first(x).to(torch.float32)
        pairs = h.view(-1, 2, 4)
        h = pairs.transpose(0, 1)[1].detach() + pairs[:, 1]
        return self.second(torch.cat([h, h], -1).to(torch.float64)), h


def test_a_cast_or_view_of_a_result_that_is_under_way() -> None:
    """A cast does not wait for the collective, so it reads unfinished numbers.

    After https://github.com/pytorch/pytorch/issues/152534.
    """
    x = numbers(4, 8)
    for module in assert_same(Cast, (x,), grids=[X2, Y2, Z2, XY], tolerance=1e-6):  # float32 inside
        assert [type(t) for t in module(x)] == [torch.Tensor, torch.Tensor]


class InPlace(nn.Module):
    """Writes into its activations, and uses none of the results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h.mul_(self.scale)
        t = h.clone()
        t[:, 0] = 1.5
        t.masked_fill_(x > 1, -2.0)
        y = self.second(t)
        y += x
        return self.relu(y)


def test_writes_in_place_whose_result_nobody_uses() -> None:
    """Removal of dead code drops them; a write to column 0 falls on the first column of every rank.

    The caller's input is not changed. After https://github.com/pytorch/pytorch/issues/68301.
    """
    x = numbers(4, 8)
    before = x.clone()
    for module in assert_same(InPlace, (x,), grids=[X2, Y2, X4, Z2, XY]):
        module(x)
        assert torch.equal(x, before)
    model = made(InPlace)
    right = model(x)
    model.scale.data.fill_(1.0)
    assert_tells_apart(right, model(x))


class Detached(nn.Module):
    """Normalises by statistics that take no gradient."""

    def __init__(self, stop: bool = True) -> None:
        super().__init__()
        self.stop = stop
        self.layer, self.out = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        with torch.set_grad_enabled(not self.stop):
            mean, deviation = h.mean(-1, keepdim=True), h.std(-1, keepdim=True)
        return self.out(((h - mean) / deviation) * h.detach())


def test_a_block_without_gradients() -> None:
    """The trace runs through a no_grad block without recording it.

    After https://github.com/pytorch/pytorch/issues/62043.
    """
    x = numbers(4, 8)
    assert_same(Detached, (x,), grids=[X2, Y2, Z2, XY])
    stopped, flowing = made(Detached), made(lambda: Detached(stop=False))
    for model in (stopped, flowing):
        mean_square(model(x)).backward()
    assert_tells_apart(stopped.layer.weight.grad, flowing.layer.weight.grad)


class Ranked(nn.Module):
    """Everything that looks along the dim of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        z = self.head(x)
        top, where = z.topk(3, -1)
        return {
            "argmax": z.argmax(-1),
            "max": z.max(1)[1],
            "top": top,
            "where": where,
            "order": z.argsort(-1),
            "softmax": z.softmax(-1),
            "log_softmax": z.log_softmax(1),
            "logsumexp": z.logsumexp(-1),
            "sums": z.cumsum(-1),
            "picked": z.gather(-1, where),
            "deviation": z.std(-1),
            "least": z.argmin(),
            "one_hot": F.one_hot(where, 12),
            "flipped": z.flip(-1),
            "rolled": z.roll(1, -1),
            "above": z > z.median(-1, keepdim=True)[0],
        }


def test_looking_along_a_cut_dim() -> None:
    """An arg-max adds up the indices of the ranks; a rule knows dim 2 and not dim -1.

    After https://github.com/tenstorrent/tt-mlir/issues/8623.
    """
    assert_same(Ranked, (numbers(5, 8),), grids=[X2, X4, Y2, XY, X3, (1, 1, 1, 1)])
    z = made(Ranked).head(numbers(5, 8))
    parts = z.chunk(2, -1)
    assert_tells_apart(z.argmax(-1), parts[0].argmax(-1) + parts[1].argmax(-1))
    assert_tells_apart(z.softmax(-1), torch.cat([part.softmax(-1) for part in parts], -1))
