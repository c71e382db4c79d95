"""Placements: where the elements of a tensor lie on the grid, and the one notation for it.

    bf16[64/data.z, 512, 4096/y] partial(x)     64 cut by data and z; 4096 cut by y; still to be summed over x
    f32[64/data.z, 512, (3 12/x 64)]            a fused dim of 3*12*64, cut inside, over heads

The same text is printed, parsed, tested and documented.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from axograph.errors import PlacementError
from axograph.grid import AXES, Grid

DTYPES = ("bf16", "f16", "f32", "f64", "c64", "c128", "i8", "i16", "i32", "i64", "u8", "b8")
"""Short names of element types, as printed."""


@dataclass(frozen=True, slots=True)
class SubDim:
    """A factor of a dim and the axes that cut it, outermost first."""

    size: int
    """The global number of positions."""
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.size}/{'.'.join(self.axes)}" if self.axes else str(self.size)

    def local(self, grid: Grid) -> int:
        """The number of positions on one rank, the same on all: where the axes do not divide, the last are padding."""
        return -(-self.size // grid.extent(self.axes))

    def is_even(self, grid: Grid) -> bool:
        """Whether no rank has padding."""
        return self.size % grid.extent(self.axes) == 0

    def levels(self, grid: Grid) -> list[tuple[str, int, int]]:
        """For each axis, outermost first: the axis, the positions that it divides, and those of each part.

        >>> SubDim(6, ("x", "y")).levels(Grid(2, 2, 1, 1))
        [('x', 6, 3), ('y', 3, 2)]
        """
        found = []
        size = self.size
        for axis in self.axes:
            part = -(-size // grid[axis])
            found.append((axis, size, part))
            size = part
        return found


Dim = tuple[SubDim, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a tensor lies on the grid; axes that are not named hold copies.

    >>> p = Placement.parse("bf16[64/data.z, 512, (3 12/x 64)] partial(y)")
    >>> Placement.parse(str(p)) == p
    True
    >>> p.shape, p.local_shape(Grid(2, 2, 2, 2))
    ((64, 512, 2304), (16, 512, 1152))
    """

    dims: tuple[Dim, ...]
    partial: tuple[tuple[str, str], ...] = ()
    """Pending reductions as (axis, "sum" | "max"), in the order of `AXES`."""
    dtype: str | None = None
    _hash: int = field(init=False, repr=False, compare=False)
    """Worked out once: placements are the keys of everything."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.dims, self.partial, self.dtype)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the hash: another process has others."""
        return Placement, (self.dims, self.partial, self.dtype)

    @classmethod
    def whole(cls, shape: Iterable[int], dtype: str | None = None) -> Placement:
        """The placement of a tensor that every rank holds in full."""
        return cls(tuple((SubDim(size),) for size in shape), (), dtype)

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read the notation; raises `PlacementError` at text that is not a placement."""
        return _Parser(text).placement()

    def __str__(self) -> str:
        dims = ", ".join(_dim_text(dim) for dim in self.dims)
        text = f"{self.dtype or ''}[{dims}]"
        if self.partial:
            pending = (axis if kind == "sum" else f"{axis}:{kind}" for axis, kind in self.partial)
            text += f" partial({', '.join(pending)})"
        return text

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return tuple(math.prod(sub.size for sub in dim) for dim in self.dims)

    @property
    def axes(self) -> frozenset[str]:
        """The axes that cut the tensor or along which it is partial."""
        return frozenset(a for dim in self.dims for sub in dim for a in sub.axes) | frozenset(dict(self.partial))

    def local_shape(self, grid: Grid) -> tuple[int, ...]:
        """The shape on one rank."""
        return tuple(math.prod(sub.local(grid) for sub in dim) for dim in self.dims)

    def local_elements(self, grid: Grid) -> int:
        """The number of elements on one rank."""
        return math.prod(self.local_shape(grid))

    def is_even(self, grid: Grid) -> bool:
        """Whether every cut divides its dim, so that no rank has padding."""
        return all(sub.is_even(grid) for dim in self.dims for sub in dim)

    def reduced(self) -> Placement:
        """The same placement with nothing pending."""
        return replace(self, partial=())

    def simplified(self, grid: Grid | None = None) -> Placement:
        """The shortest equal placement: `(12/x 64)` is `768/x`, `(3 4)` is `12`.

        On a grid that cuts one of the factors unevenly, that factor stays: `(5/x 8)` is not `40/x` there.
        """
        return replace(self, dims=tuple(_merged(dim, grid) for dim in self.dims))

    def check(self, grid: Grid) -> None:
        """Raise `PlacementError` if an axis is used twice."""
        used = [a for dim in self.dims for sub in dim for a in sub.axes] + [axis for axis, _ in self.partial]
        twice = sorted({axis for axis in used if used.count(axis) > 1})
        if twice:
            raise PlacementError(
                f"axis {twice[0]} is used twice in {self}",
                asked=str(self),
                given=f"grid {grid}",
                rule="an axis cuts one dim, or is pending, but not both",
                remedy=f"name {twice[0]} once",
            )


def _merged(dim: Dim, grid: Grid | None) -> Dim:
    merged: list[SubDim] = []
    for sub in dim:
        if merged and not sub.axes and (grid is None or merged[-1].is_even(grid)):
            merged[-1] = SubDim(merged[-1].size * sub.size, merged[-1].axes)
        elif merged and merged[-1].size == 1 and not merged[-1].axes:
            merged[-1] = sub
        else:
            merged.append(sub)
    return tuple(merged) or (SubDim(1),)


def _dim_text(dim: Sequence[SubDim]) -> str:
    return str(dim[0]) if len(dim) == 1 else f"({' '.join(map(str, dim))})"


class _Parser:
    """A reader of the notation, one token at a time."""

    TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|[\[\](),/.:])")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = self.TOKEN.match(text, at)
            if match is None:
                raise self.error(f"a token at {text[at:]!r}")
            self.tokens.append(match[1])
            at = match.end()
        self.at = 0

    def error(self, wanted: str) -> PlacementError:
        return PlacementError(
            f"not a placement: {self.text!r}",
            asked=f"Placement.parse({self.text!r})",
            given=f"expected {wanted}",
            rule="dtype[size/axis.axis, (size size/axis), ...] partial(axis, axis:max)",
            remedy="bf16[64/data.z, 512, 4096/y] partial(x)",
        )

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.next
        if wanted and token not in wanted:
            raise self.error(" or ".join(map(repr, wanted)))
        self.at += 1
        return token

    def placement(self) -> Placement:
        dtype = self.take(*DTYPES) if self.next != "[" else None
        self.take("[")
        dims: list[Dim] = []
        while self.next != "]":
            dims.append(self.dim())
            if self.next != "]":
                self.take(",")
        self.take("]")
        partial = self.partial() if self.next else ()
        if self.next:
            raise self.error("the end")
        return Placement(tuple(dims), partial, dtype)

    def dim(self) -> Dim:
        if self.next != "(":
            return (self.sub(),)
        self.take("(")
        subs = [self.sub()]
        while self.next != ")":
            subs.append(self.sub())
        self.take(")")
        return tuple(subs)

    def sub(self) -> SubDim:
        size = self.take()
        if not size.isdigit():
            raise self.error("a size")
        axes: list[str] = []
        while self.next in ("/", ".") and (self.next == ".") == bool(axes):
            self.take()
            axes.append(self.take(*AXES))
        return SubDim(int(size), tuple(axes))

    def partial(self) -> tuple[tuple[str, str], ...]:
        self.take("partial")
        self.take("(")
        pending: dict[str, str] = {}
        while True:
            axis = self.take(*AXES)
            if axis in pending:
                raise self.error("an axis once")
            pending[axis] = "sum"
            if self.next == ":":
                self.take(":")
                pending[axis] = self.take("sum", "max")
            if self.take(",", ")") == ")":
                break
        return tuple((axis, pending[axis]) for axis in AXES if axis in pending)
