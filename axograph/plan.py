"""The plan: for every matmul its placement on the grid, the cost of the whole, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from axograph.grid import Grid
from axograph.placement import Placement

SCHEMES = ("axonn", "megatron", "fsdp", "ddp")
"""Classic layouts that the search can be pinned to, for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPlacement:
    """Where the product O = I W of a linear layer lies: I is m x k, W is k x n.

    Cutting k leaves O partial until it is reduced; cutting m leaves the gradient of W partial.
    """

    path: str
    """The module, such as "layers.0.mlp.up_proj"."""
    weight: str
    """The parameter that is W, or "" where W is no parameter."""
    m: tuple[str, ...] = ()
    """The axes that cut the rows (tokens)."""
    k: tuple[str, ...] = ()
    """The axes that cut the contracted features."""
    n: tuple[str, ...] = ()
    """The axes that cut the output features."""
    shape: tuple[int, int, int] = (0, 0, 0)
    """The global sizes (m, k, n)."""
    stored: Placement | None = None
    """Where the weight lies between uses."""
    reason: str = ""
    """Why an axis cuts nothing here, or why the layout asked for was not possible."""

    def __str__(self) -> str:
        def cut(name: str, axes: tuple[str, ...]) -> str:
            return f"{name}/{'.'.join(axes)}" if axes else name

        return f"{cut('m', self.m)} {cut('k', self.k)} {cut('n', self.n)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Mapping[str, MatmulPlacement]):
    """The placements of all matmuls of a model, by module path.

    A module that multiplies more than once has its further products under `path#2`, `path#3`, ...
    """

    grid: Grid
    scheme: str | None
    matmuls: dict[str, MatmulPlacement]
    parameters: dict[str, Placement]
    """Where each parameter is stored."""
    cost_s: float
    """Seconds of a step under the cost model, nothing overlapped."""
    certificate: str
    """"optimal", or what is known of the distance to the optimum."""
    notes: tuple[str, ...] = field(default=())
    """What else was decided for the user."""

    def __getitem__(self, path: str) -> MatmulPlacement:
        return self.matmuls[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.matmuls)

    def __len__(self) -> int:
        return len(self.matmuls)

    def __str__(self) -> str:
        header = f"plan on grid {self.grid}"
        if self.scheme:
            header += f", scheme {self.scheme}"
        header += f": {_duration(self.cost_s)} a step before overlap, {self.certificate}"
        width = max((len(path) for path in self.matmuls), default=0)
        lines = [header]
        for path, placed in self.matmuls.items():
            stored = f"  W stored {placed.stored.simplified()}" if placed.stored else ""
            reason = f"  ({placed.reason})" if placed.reason else ""
            lines.append(f"  {path:<{width}}  {placed!s:<24}{stored}{reason}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def _duration(time_s: float) -> str:
    """Seconds in the unit that reads best: "3.21 ms"."""
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if time_s >= size_s:
            return f"{time_s / size_s:.3g} {unit}"
    return f"{time_s / 1e-6:.3g} us"
