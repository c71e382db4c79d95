"""Random numbers as a pure operator: each is a function of a key, of its site in the program, and of its global index.

    random(key, site, first, sizes, strides, kind, keep, dtype, device) -> [*sizes]

    key      a scalar i64, new in every call of the model; None until `capture` has given each draw its site
    site     which draw of the program it is, by order
    first    a scalar i64, the index of the first number; None for 0
    strides  by how much the index grows along each dim

So a rank makes its own part of a tensor of random numbers without the rest, and the same part again whenever asked. A
counter makes 4 numbers (of masks 8): the index divided by that is the counter, the rest says which of its numbers.
Kinds: "keep" (b8, True with probability `keep`), "uniform" (0 to 1, without 1), "normal" (mean 0, deviation 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from axograph.capture.philox import philox

_RARE = 1 / 64
"""Masks that keep or drop less than this are compared with words of 32 bits, others with halves: 2**-17 from `keep`."""

_CHUNK = {"cpu": 1 << 15}
"""The counters taken at once: on a CPU so many that they stay in its cache; elsewhere `_MOST`."""
_MOST = 1 << 20


@torch.library.custom_op("axograph::random", mutates_args=())
def random(
    key: torch.Tensor | None,
    site: int,
    first: torch.Tensor | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    kind: str,
    keep: float,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Random numbers, `[*sizes]`."""
    assert key is not None, "a draw without a site"
    return _drawn(key, site, first, sizes, strides, _reader(kind, keep, dtype), dtype, device)


@random.register_fake
def _(
    key: torch.Tensor | None,
    site: int,
    first: torch.Tensor | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    kind: str,
    keep: float,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device=device)


def _over_ranks(
    info: object,
    in_dims: Sequence[int | None],
    key: torch.Tensor,
    site: int,
    first: torch.Tensor | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    kind: str,
    keep: float,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, int]:
    """`vmap`: each rank has its key and its first index."""
    ranks: int = info.batch_size  # type: ignore[attr-defined]
    key = key.expand(ranks)
    first = first.expand(ranks) if first is not None else None
    return _drawn(key, site, first, sizes, strides, _reader(kind, keep, dtype), dtype, device), 0


random.register_vmap(_over_ranks)

Reader = Sequence[Callable[[torch.Tensor], torch.Tensor]]
"""What is made of each word of 32 bits: one number, or several, each by its own function."""


def _reader(kind: str, keep: float, dtype: torch.dtype) -> Reader:
    """How a kind of numbers is made of words."""
    if kind == "keep" and min(keep, 1 - keep) < _RARE:
        return (lambda word: word < round(keep * 2**32),)
    if kind == "keep":
        below = round(keep * 2**16)
        return (lambda word: (word & 0xFFFF) < below, lambda word: word < below << 16)
    if kind == "uniform":
        bits = 32 if dtype == torch.float64 else round(1 - math.log2(torch.finfo(dtype).eps))  # as torch.rand
        return (lambda word: (word >> (32 - bits)).to(dtype) * 2.0**-bits,)
    assert kind == "normal", kind
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    bits = 32 if dtype == torch.float64 else 23  # half a step more is exact, so that neither 0 nor 1 occurs
    return (lambda word: _normal(((word >> (32 - bits)).to(exact) + 0.5) * 2.0**-bits).to(dtype),)


def _normal(uniform: torch.Tensor) -> torch.Tensor:
    """By the inverse of the distribution function."""
    return math.sqrt(2) * torch.erfinv(2 * uniform - 1)


def _drawn(
    key: torch.Tensor,
    site: int,
    first: torch.Tensor | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    read: Reader,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """The numbers of a key and a first index, or of as many of both as there are ranks: `[*ranks, *sizes]`."""
    lead = list(key.shape)
    if math.prod(sizes) == 0:
        return torch.empty([*lead, *sizes], dtype=dtype, device=device)
    outer, length = _runs(sizes, strides)
    starts = torch.zeros([*lead, 1], dtype=torch.int64, device=device)
    if first is not None:
        starts = starts + first[..., None]
    for size, stride in outer:
        starts = (starts[..., None] + torch.arange(size, device=device) * stride).flatten(-2)
    runs = starts.shape[-1]
    keys = key[..., None].expand(*lead, runs).reshape(-1, 1) if lead else key
    starts = starts.reshape(-1, 1)
    each = 4 * len(read)
    aligned = all(stride % each == 0 for _, stride in outer) and _is_multiple(first, each)
    counters = -(-(length if aligned else length + each - 1) // each)
    made = torch.empty(len(starts), counters, each, dtype=dtype, device=device)
    _fill(made, keys, site, starts // each, read)
    numbers = made.flatten(1)
    numbers = numbers[:, :length] if aligned else _shifted(numbers, starts % each, each, length)
    return numbers.reshape([*lead, *sizes])


def _is_multiple(first: torch.Tensor | None, of: int) -> bool:
    """Whether runs are known to start with the first number of a counter: only on a CPU is there no need to wait."""
    return first is None or (first.device.type == "cpu" and not bool((first % of).any()))


def _runs(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """The sizes and strides of the dims, as few as possible, outside of runs of successive indices; their length."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * stride:
            size *= dims.pop()[0]
        dims.append((size, stride))
    length = dims.pop()[0] if dims and dims[-1][1] == 1 else 1
    return dims, length


def _fill(made: torch.Tensor, keys: torch.Tensor, site: int, first: torch.Tensor, read: Reader) -> None:
    """Write the numbers of successive counters, `[runs, counters, each]`, from the first of each run, `[runs, 1]`."""
    runs, counters, _ = made.shape
    most = _CHUNK.get(made.device.type, _MOST)
    width = -(-counters // -(-counters // most))
    height = max(1, most // width)
    for top in range(0, runs, height):
        rows = slice(top, top + height)
        key = keys[rows] if keys.dim() else keys
        for left in range(0, counters, width):
            columns = slice(left, min(left + width, counters))
            at = first[rows] + torch.arange(columns.start, columns.stop, device=made.device)
            words = philox((at & 0xFFFFFFFF, at >> 32, site, 0), (key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF))
            numbers = (make(word) for word in words for make in read)
            for i, number in enumerate(numbers):
                made[rows, columns, i] = number


def _shifted(numbers: torch.Tensor, by: torch.Tensor, below: int, length: int) -> torch.Tensor:
    """`length` numbers of each run, from the one at `by` on: `[runs, n], [runs, 1] -> [runs, length]`."""
    while below > 1:
        below //= 2
        numbers = torch.where(by & below > 0, numbers[:, below:], numbers[:, :-below])
    return numbers[:, :length]
