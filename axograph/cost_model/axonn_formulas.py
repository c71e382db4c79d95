"""What a linear layer communicates under AxoNN's scheme, written down by hand.

After the performance model of Singh et al., SC24 (arXiv 2502.08145). The compiler does not use these formulas: they
are what its output is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

from axograph.cost_model.protocol import Collective
from axograph.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """O = I W with I: m x k, W: k x n, O: m x n, sizes of the whole model and the global batch."""

    m: int
    """Tokens of the global batch, cut by z and data."""
    k: int
    """Input features, cut by y (by x if transposed)."""
    n: int
    """Output features, cut by x (by y if transposed)."""
    element_bytes: int
    """Bytes of one element, the same for activations, weights and gradients."""
    transposed: bool = False
    """Whether x and y change places, as in every second layer, so that O lies as the next layer's I must."""

    @property
    def contraction_axis(self) -> str:
        """The axis that cuts k: O is summed over it."""
        return "x" if self.transposed else "y"

    @property
    def output_axis(self) -> str:
        """The axis that cuts n: dI is summed over it."""
        return "y" if self.transposed else "x"


def forward_collectives(layer: LinearLayer, grid: Grid) -> tuple[Collective, ...]:
    """Gather W over z; sum O over the contraction axis. Groups of one rank are left out.

    >>> layer = LinearLayer(m=16, k=8, n=4, element_bytes=2)
    >>> for c in forward_collectives(layer, Grid(1, 2, 2, 1)):
    ...     print(c.kind, c.axes, c.size_bytes)
    all_gather ('z',) 32.0
    all_reduce ('y',) 64.0
    """
    output_bytes = _activation_bytes(layer, layer.n, layer.output_axis, grid)
    return _real(
        grid,
        Collective(kind="all_gather", axes=("z",), size_bytes=_weight_bytes(layer, grid)),
        Collective(kind="all_reduce", axes=(layer.contraction_axis,), size_bytes=output_bytes),
    )


def backward_collectives(layer: LinearLayer, grid: Grid) -> tuple[Collective, ...]:
    """Gather W over z again; sum dI over the output axis; scatter dW over z; sum the shard of dW over data.

    Groups of one rank are left out.
    """
    weight_bytes = _weight_bytes(layer, grid)
    input_bytes = _activation_bytes(layer, layer.k, layer.contraction_axis, grid)
    return _real(
        grid,
        Collective(kind="all_gather", axes=("z",), size_bytes=weight_bytes),
        Collective(kind="all_reduce", axes=(layer.output_axis,), size_bytes=input_bytes),
        Collective(kind="reduce_scatter", axes=("z",), size_bytes=weight_bytes),
        Collective(kind="all_reduce", axes=("data",), size_bytes=weight_bytes / grid.z),
    )


def _weight_bytes(layer: LinearLayer, grid: Grid) -> float:
    """W on one rank while it is gathered over z."""
    return layer.k * layer.n * layer.element_bytes / (grid.x * grid.y)


def _activation_bytes(layer: LinearLayer, features: int, axis: str, grid: Grid) -> float:
    """I or O on one rank: tokens cut by z and data, features by one axis."""
    return layer.m * features * layer.element_bytes / (grid.z * grid.data * grid[axis])


def _real(grid: Grid, *collectives: Collective) -> tuple[Collective, ...]:
    return tuple(collective for collective in collectives if grid.extent(collective.axes) > 1)
