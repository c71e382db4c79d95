"""Which links the traffic of a group takes, and how much of them it gets.

Geometry of the grid on nodes only; what the traffic costs is in `ring.py` and `bandwidth.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from axograph.cost_model.machine import Machine
from axograph.cost_model.protocol import CollectiveKind
from axograph.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the rings along some axes run, all groups along these axes communicating at once."""

    ranks: int
    """Ranks of one group."""
    inside_node: bool
    """Whether every group lies in one node."""
    sharing: float
    """Rings that leave a node, on average over nodes; they share its network interfaces. 1 inside a node."""


@lru_cache(maxsize=4096)
def route(grid: Grid, axes: tuple[str, ...], ranks_per_node: int) -> Route:
    """The route of the groups along these axes; nodes hold consecutive ranks.

    The paper's rule for one axis, Case 2 (Singh et al., SC24, arXiv 2502.08145, the performance model): a ring whose
    neighbours are `stride` ranks apart shares the node with `min(ranks_per_node, stride)` rings. A group along several
    axes has some of the ranks in between as its own members: only the others start rings of their own.

    >>> route(Grid(2, 2, 4, 1), ("z",), 4)
    Route(ranks=4, inside_node=False, sharing=4.0)
    >>> route(Grid(2, 2, 4, 1), ("x", "z"), 4)
    Route(ranks=8, inside_node=False, sharing=2.0)
    """
    spanned = [axis for axis in grid.order if axis in axes and grid[axis] > 1]
    ranks = grid.extent(spanned)
    if not spanned:
        return Route(ranks=1, inside_node=True, sharing=1.0)
    outermost = spanned[-1]
    block = grid.stride(outermost) * grid[outermost]
    if grid.size <= ranks_per_node or ranks_per_node % block == 0:
        return Route(ranks=ranks, inside_node=True, sharing=1.0)
    sharing = 1.0
    for axis in grid.order[: grid.order.index(outermost)]:
        if axis not in spanned:
            stride = grid.stride(axis)
            sharing *= min(ranks_per_node, stride * grid[axis]) / min(ranks_per_node, stride)
    return Route(ranks=ranks, inside_node=False, sharing=sharing)


def bandwidth_bytes_per_s(machine: Machine, way: Route, kind: CollectiveKind) -> float:
    """What one rank sends per second in a collective on this route, and receives meanwhile.

    Inside a node a rank uses its links to the other members. Between nodes the rings that leave a node share its
    network; a ring passes from node to node once, whereas in an all-to-all every rank of a node sends out of it, so
    there all ranks share.
    """
    links = machine.intra_node
    if way.inside_node:
        return min(links.rank_bytes_per_s, links.peer_bytes_per_s * (way.ranks - 1))
    sharing = machine.ranks_per_node if kind == "all_to_all" else way.sharing
    return min(links.rank_bytes_per_s, machine.inter_node.node_bytes_per_s / sharing)


def step_latency_s(machine: Machine, way: Route) -> float:
    """Seconds that one step takes before its first byte arrives: a ring steps at the pace of its slowest link."""
    return machine.intra_node.step_latency_s if way.inside_node else machine.inter_node.step_latency_s


def steps(kind: CollectiveKind, ranks: int) -> int:
    """Steps of a collective of this many ranks; in each, a rank sends one `ranks`-th of the collective's bytes.

    An all-reduce is a reduce-scatter and an all-gather.
    """
    return 2 * (ranks - 1) if kind == "all_reduce" else ranks - 1
