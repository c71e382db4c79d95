"""What a cost model answers, and the questions it is asked. Pure numbers: nothing here imports torch.

A user's own model is any object with the three methods of `CostModel`; pass it as `parallelize(..., cost_model=...)`.
It may also have `channel(collective, grid) -> str`, which names the links that a collective takes: those on different
channels run at the same time. Without it all share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from axograph.grid import Grid

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The work that one rank does for one node of the graph."""

    op: str
    """The name of the operator, such as "aten.mm.default"."""
    flops: float
    """Floating-point operations, a multiply-add counted as two; 0 where only memory traffic counts."""
    size_bytes: float
    """Bytes read and written."""
    dtype: str
    """Element type of the result, as printed in placements: "bf16", "f32", ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, as one rank sees it."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    """The grid axes that its group spans."""
    size_bytes: float
    """Bytes of the larger side on one rank: the result of an all-gather, the input of a reduce-scatter, the tensor of
    an all-reduce or all-to-all."""


@runtime_checkable
class CostModel(Protocol):
    """Seconds for computing, for communicating, and for holding model state.

    A model may also have `memory_bytes`: what a rank can hold, the limit of every plan unless another one is given.
    """

    def compute_s(self, work: Compute) -> float:
        """Seconds that a rank needs for this work."""
        ...

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        """Seconds from the start of a collective to its end, nothing else running."""
        ...

    def hold_s(self, size_bytes: float) -> float:
        """Seconds per step charged for keeping this many bytes of parameters on a rank.

        It stands for what the memory could do otherwise; 0 means that memory is free until it is full.
        """
        ...
