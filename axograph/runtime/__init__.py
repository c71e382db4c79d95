"""Runtime: what programs run on. `process_grid` is imported where there is a process group, not before."""

from axograph.runtime.engine import Engine, OneRank
from axograph.runtime.virtual_grid import VirtualGrid

__all__ = ["Engine", "OneRank", "VirtualGrid"]
