"""The default cost model: roofline compute, rings with latency and shared bandwidth, held bytes priced."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from axograph.cost_model.hold import default_hold_s_per_byte
from axograph.cost_model.machine import Machine
from axograph.cost_model.protocol import Collective, Compute
from axograph.cost_model.route import bandwidth_bytes_per_s, route, step_latency_s, steps
from axograph.grid import Grid


def _perlmutter() -> Machine:
    return Machine.load("perlmutter")


@dataclass(frozen=True, slots=True)
class RingModel:
    """Seconds on a machine whose collectives are rings.

    >>> model = RingModel(Machine.load("frontier"))
    >>> model.collective_s(Collective(kind="all_reduce", axes=("x",), size_bytes=1e9), Grid(1, 8, 1, 1))
    0.0
    """

    machine: Machine = field(default_factory=_perlmutter)
    _: KW_ONLY
    hold_s_per_byte: float | None = None
    """Price of holding a byte of parameters; None for that of `hold.default_hold_s_per_byte`, 0 to make it free."""

    @property
    def memory_bytes(self) -> float:
        """What one rank can hold."""
        return self.machine.memory_bytes

    def compute_s(self, work: Compute) -> float:
        """The longer one of computing and moving memory, and the launch of the kernel; 0 for no work."""
        if work.flops == 0 and work.size_bytes == 0:
            return 0.0
        computing_s = work.flops / self.machine.matmul_flops_per_s(work.dtype)
        moving_s = work.size_bytes / self.machine.memory_bytes_per_s
        return max(computing_s, moving_s) + self.machine.kernel_launch_s

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        """Steps of (latency + a rank's share of the bytes / bandwidth); 0 for a group of one rank.

        With n ranks and S = `size_bytes`: 2 (n-1) steps for an all-reduce, n-1 for every other kind, S/n bytes each.
        """
        way = route(grid, collective.axes, self.machine.ranks_per_node)
        if way.ranks == 1:
            return 0.0
        share_s = collective.size_bytes / way.ranks / bandwidth_bytes_per_s(self.machine, way, collective.kind)
        return steps(collective.kind, way.ranks) * (step_latency_s(self.machine, way) + share_s)

    def channel(self, collective: Collective, grid: Grid) -> str:
        """The links that a collective takes: "node" within nodes, "network" between them."""
        way = route(grid, collective.axes, self.machine.ranks_per_node)
        return "node" if way.inside_node else "network"

    def hold_s(self, size_bytes: float) -> float:
        """The price of holding parameters; gradients and optimizer state follow them and are part of it."""
        price = self.hold_s_per_byte
        return size_bytes * (default_hold_s_per_byte(self.machine) if price is None else price)
