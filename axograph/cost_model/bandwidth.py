"""The paper's cost model: communication only, by bandwidth only (Singh et al., SC24, arXiv 2502.08145).

It leaves out latency, compute and overlap: right for ranking grids by large messages, blind to rings of thousands of
ranks. Two departures: links inside a node are figures of the machine, where the paper measures a table, and held
parameters are priced as in `RingModel`, where the paper always cuts them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from axograph.cost_model.hold import default_hold_s_per_byte
from axograph.cost_model.machine import Machine
from axograph.cost_model.protocol import Collective, Compute
from axograph.cost_model.route import bandwidth_bytes_per_s, route, steps
from axograph.grid import Grid


@dataclass(frozen=True, slots=True)
class BandwidthModel:
    """Seconds for the bytes that a ring moves over links of the machine, and nothing else."""

    machine: Machine
    _: KW_ONLY
    hold_s_per_byte: float | None = None
    """Price of holding a byte of parameters; None for that of `hold.default_hold_s_per_byte`, 0 to make it free."""

    @property
    def memory_bytes(self) -> float:
        """What one rank can hold."""
        return self.machine.memory_bytes

    def compute_s(self, work: Compute) -> float:
        """0: the model compares communication."""
        return 0.0

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        """Bytes that a rank sends / bandwidth: (n-1)/n of `size_bytes`, twice that for an all-reduce."""
        way = route(grid, collective.axes, self.machine.ranks_per_node)
        if way.ranks == 1:
            return 0.0
        sent_bytes = steps(collective.kind, way.ranks) * collective.size_bytes / way.ranks
        return sent_bytes / bandwidth_bytes_per_s(self.machine, way, collective.kind)

    def hold_s(self, size_bytes: float) -> float:
        """The price of holding parameters; gradients and optimizer state follow them and are part of it."""
        price = self.hold_s_per_byte
        return size_bytes * (default_hold_s_per_byte(self.machine) if price is None else price)
