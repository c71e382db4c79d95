"""A cost model of ranks over gloo on shaped links; its figures are measured, by `calibrate.py` or as written here."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from axograph.cost_model.protocol import Collective, Compute
from axograph.cost_model.route import Route, route, steps
from axograph.grid import Grid
from axograph.runtime.exchange import MOST_RANKS

OPERATORS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}
SLOWER = {"gelu.": 6.0, "gelu_backward.": 2.5, "_log_softmax.": 4.0, "attention": 1.7}
"""How many times as long operators take as their bytes, or flops at the rate of products, measured as `Figures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one rank of the box does. Measured on two virtual processors (Sapphire Rapids), torch 2.13, one thread."""

    flops_per_s: float = 1.15e11
    """Of products of 512 features and more, in float32."""
    memory_bytes_per_s: float = 8e9
    """Of pointwise operators, which write to memory that is new to them."""
    operator_s: float = 1.5e-5
    """To start an operator."""
    filled: float = 0.95
    """The part of a link that a collective fills. gloo's all-gather in rings of four ranks: 0.90."""
    latency_s: float = 5e-4
    """What a small collective takes among others. One that is waited for alone takes about 1 ms."""
    loopback_bytes_per_s: float = 1e9
    """Between ranks of one host, each."""

    def shared(self, ranks_per_processor: float) -> Figures:
        """The figures of a rank where several share a processor."""
        times = max(ranks_per_processor, 1.0)
        return replace(
            self,
            flops_per_s=self.flops_per_s / times,
            memory_bytes_per_s=self.memory_bytes_per_s / times,
            operator_s=self.operator_s * times,
        )

    @classmethod
    def load(cls, path: str | Path) -> Figures:
        """Figures that `calibrate.py` has written."""
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: str | Path) -> None:
        """Write them as JSON."""
        Path(path).write_text(json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class GlooModel:
    """Exchanges between few ranks, rings of gloo otherwise, on links that hosts have each way."""

    link_bytes_per_s: float
    ranks_per_host: int
    figures: Figures = Figures()

    @classmethod
    def of(cls, link_bytes_per_s: float, flops_per_s: float, ranks_per_host: int) -> GlooModel:
        """A model with another rate of products."""
        return cls(link_bytes_per_s, ranks_per_host, replace(Figures(), flops_per_s=flops_per_s))

    def compute_s(self, work: Compute) -> float:
        """The longer one of computing and moving memory, and the start of the operator."""
        if work.flops == 0 and work.size_bytes == 0:
            return 0.0
        figures = self.figures
        slower = next(
            (times for name, times in SLOWER.items() if name in work.op and "softmax_back" not in work.op), 1.0
        )
        moving_s = work.size_bytes / figures.memory_bytes_per_s
        return slower * max(work.flops / figures.flops_per_s, moving_s) + figures.operator_s

    def collective_s(self, collective: Collective, grid: Grid) -> float:
        """A latency, and what the busiest link carries: that of a host, or the loopback."""
        way = route(grid, collective.axes, self.ranks_per_host)
        if way.ranks == 1:
            return 0.0
        sent = self._sent(collective, way) * collective.size_bytes
        rate = self.figures.loopback_bytes_per_s if way.inside_node else self.link_bytes_per_s * self.figures.filled
        return self.figures.latency_s + sent / rate

    def _sent(self, collective: Collective, way: Route) -> float:
        """What a host puts on its link (inside a host, a rank sends), in sizes of the collective."""
        n = way.ranks
        if n > MOST_RANKS[OPERATORS[collective.kind]]:  # gloo's reduce-scatter sends as much as its all-reduce
            ring = "all_reduce" if collective.kind == "reduce_scatter" else collective.kind
            return way.sharing * steps(ring, n) / n
        if way.inside_node or collective.kind == "all_reduce":
            return way.sharing * steps(collective.kind, n) / n
        members = self.ranks_per_host / way.sharing
        return self.ranks_per_host * (n - members) / n

    def hold_s(self, size_bytes: float) -> float:
        """Memory is never short."""
        return 0.0

    def channel(self, collective: Collective, grid: Grid) -> str:
        """The loopback, or the links between hosts."""
        return "node" if route(grid, collective.axes, self.ranks_per_host).inside_node else "network"
