"""A cost model of ranks over gloo on shaped links: rings, and what gloo makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from axograph.cost_model import RingModel
from axograph.cost_model.machine import InterNodeLinks, IntraNodeLinks, Machine, MatmulRate
from axograph.cost_model.protocol import Collective, Compute
from axograph.grid import Grid

LINK_FILLED = {"all_reduce": 0.97, "all_gather": 0.64, "reduce_scatter": 0.95, "all_to_all": 0.49}
"""The part of a 200 Mbit/s link that each collective of gloo fills, measured with 16 MiB on two hosts, torch 2.13."""


@dataclass(frozen=True, slots=True)
class GlooModel:
    """Rings, but a reduce-scatter sends as much as an all-reduce, and no collective fills its link."""

    ring: RingModel

    @classmethod
    def of(cls, link_bytes_per_s: float, flops_per_s: float, ranks_per_host: int) -> GlooModel:
        """A model of this box; memory is never short and holding parameters costs nothing."""
        machine = Machine(
            name="box",
            ranks_per_node=ranks_per_host,
            memory_bytes=1e12,
            memory_bytes_per_s=8e9,
            kernel_launch_s=5e-6,
            matmul=(MatmulRate(dtype="f32", peak_flops_per_s=flops_per_s, achievable_fraction=1.0),),
            intra_node=IntraNodeLinks(rank_bytes_per_s=1e9, peer_bytes_per_s=1e9, step_latency_s=1e-4),
            inter_node=InterNodeLinks(node_bytes_per_s=link_bytes_per_s, step_latency_s=5e-4),
        )
        return cls(RingModel(machine, hold_s_per_byte=0.0))

    def compute_s(self, work: Compute) -> float:
        return self.ring.compute_s(work)

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        sent = replace(collective, kind="all_reduce") if collective.kind == "reduce_scatter" else collective
        return self.ring.collective_s(sent, grid) / LINK_FILLED[collective.kind]

    def hold_s(self, size_bytes: float) -> float:
        return self.ring.hold_s(size_bytes)

    def channel(self, collective: Collective, grid: Grid) -> str:
        return self.ring.channel(collective, grid)
