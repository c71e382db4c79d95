"""The four-dimensional grid of ranks: its axes, the numbering of ranks, and the groups along axes.

An *axis* is always a grid axis; a *dim* is always a tensor dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from axograph.errors import GridError

AXES = ("x", "y", "z", "data")
"""Names of the axes, in the order in which a grid is written."""

CUT_ORDER = ("data", "x", "y", "z")
"""The order, outermost first, in which several axes cut one dim: `4096/x.z` is cut by x, each part again by z.

A device mesh with its dimensions in this order expresses every such cut without strided shards.
"""


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of `x * y * z * data` ranks.

    Rank = ((d * z_size + z) * y_size + y) * x_size + x for the default order: x is innermost, on the fastest
    links. After Singh et al., SC24 (arXiv 2502.08145), section V.

    >>> grid = Grid.of((2, 1, 2, 1))
    >>> grid.size, grid.coordinate(3)
    (4, {'x': 1, 'y': 0, 'z': 1, 'data': 0})
    """

    x: int
    y: int
    z: int
    data: int
    order: tuple[str, ...] = AXES
    """The axes, innermost first: which axis joins neighbouring ranks."""

    def __post_init__(self) -> None:
        for axis in AXES:
            size = getattr(self, axis)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise _malformed(tuple(getattr(self, a) for a in AXES))
        if sorted(self.order) != sorted(AXES):
            raise GridError(
                "the order of the grid's axes is not a permutation of them",
                asked=f"order={self.order!r}",
                given=f"the axes {', '.join(AXES)}",
                rule="the order names each axis once, innermost first",
                remedy=f"order={AXES!r}, the default",
            )

    @classmethod
    def of(cls, value: Grid | Sequence[int]) -> Grid:
        """Make a grid from a grid or from four positive integers `(x, y, z, data)`; `GridError` otherwise."""
        if isinstance(value, Grid):
            return value
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise _malformed(value)
        sizes = tuple(value)
        if len(sizes) != len(AXES):
            raise _malformed(sizes)
        x, y, z, data = sizes
        return cls(x, y, z, data)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes in the order (x, y, z, data)."""
        return (self.x, self.y, self.z, self.data)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)

    @property
    def cut_axes(self) -> tuple[str, ...]:
        """The axes of more than one rank, in `CUT_ORDER`."""
        return tuple(axis for axis in CUT_ORDER if self[axis] > 1)

    def __getitem__(self, axis: str) -> int:
        return int(getattr(self, axis))

    def __str__(self) -> str:
        return " ".join(f"{axis}={self[axis]}" for axis in AXES)

    def extent(self, axes: Iterable[str]) -> int:
        """The number of ranks along these axes together."""
        return math.prod(self[axis] for axis in axes)

    def coordinate(self, rank: int) -> dict[str, int]:
        """The position of a rank along each axis."""
        position = {}
        for axis in self.order:
            rank, position[axis] = divmod(rank, self[axis])
        return {axis: position[axis] for axis in AXES}

    def rank(self, coordinate: dict[str, int]) -> int:
        """The rank at a position; the inverse of `coordinate`."""
        rank = 0
        for axis in reversed(self.order):
            rank = rank * self[axis] + coordinate[axis]
        return rank

    def stride(self, axis: str) -> int:
        """The distance in ranks between neighbours along an axis."""
        return self.extent(self.order[: self.order.index(axis)])

    def group(self, axes: Iterable[str], rank: int) -> tuple[int, ...]:
        """The ranks, ascending, that differ from `rank` only along these axes."""
        axes = set(axes)
        here = self.coordinate(rank)
        positions = [range(self[axis]) if axis in axes else (here[axis],) for axis in AXES]
        members = (dict(zip(AXES, position, strict=True)) for position in itertools.product(*positions))
        return tuple(sorted(self.rank(member) for member in members))

    def groups(self, axes: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """All groups along these axes, by their first rank."""
        axes = tuple(axes)
        for rank in range(self.size):
            if all(at == 0 for axis, at in self.coordinate(rank).items() if axis in axes):
                yield self.group(axes, rank)


def _malformed(value: object) -> GridError:
    return GridError(
        "a grid is four positive integers",
        asked=f"grid={value!r}",
        given="the number of ranks along each of the axes x, y, z, data",
        rule="x, y, z and data are integers of at least 1; their product is the number of ranks",
        remedy="grid=(2, 1, 2, 1) for four ranks, grid=(1, 1, 1, 1) for one",
    )
