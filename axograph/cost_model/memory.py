"""What one rank holds at most during a training step, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The most bytes that one rank holds at once, by kind: an upper estimate."""

    parameters: float
    """Parameters as they are stored, and buffers."""
    gradients: float
    """Gradients of the parameters, stored as these are."""
    optimizer: float
    """State of the optimizer, in the element type of the parameters."""
    saved: float
    """Values that the forward half keeps for the backward half."""
    batch: float
    """Inputs, which every rank is given whole, and its part of the outputs."""
    passing: float
    """The most that is alive in passing: gathered weights, and values on their way from one operator to another."""

    @property
    def total(self) -> float:
        """All kinds together."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __str__(self) -> str:
        kinds = ", ".join(f"{field.name} {readable(getattr(self, field.name))}" for field in fields(self))
        return f"{readable(self.total)} ({kinds})"


def readable(size_bytes: float) -> str:
    """Bytes in the unit that reads best.

    >>> readable(3_200_000)
    '3.2 MB'
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.0f} B"
