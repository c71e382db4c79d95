"""AxoGraph compiles an unmodified `nn.Module` into one that trains on a four-dimensional grid of ranks."""

from axograph.api import parallelize
from axograph.grid import Grid
from axograph.placement import Placement

__all__ = ["Grid", "Placement", "parallelize"]
