"""What it costs to hold parameters: the price that decides between cut storage and copies."""

from __future__ import annotations

from axograph.cost_model.machine import Machine


def default_hold_s_per_byte(machine: Machine) -> float:
    """Twice the seconds that a byte takes over the slowest link of the machine.

    A weight of W bytes needed whole by n ranks can be stored cut or as n copies. Cut, it is gathered forward and
    again backward and its gradient is reduce-scattered: 3 (n-1) steps. As copies, its gradient is all-reduced:
    2 (n-1) steps. Each step costs a latency and W/n bytes, so cut storage communicates longer by

        (n-1) (latency + W / (n bandwidth))    and holds less by    (n-1) W / n.

    Cut storage is the cheaper one where `price > 1/bandwidth + n latency / W`. Hence a price above 1/bandwidth, for
    any n, cuts large weights; latency alone decides for copies of small ones. No ring is slower than the slowest
    link, so twice its seconds per byte is above 1/bandwidth on every route, and there the change comes at
    W = n * latency * bandwidth: the size below which the gather is mostly latency.
    """
    return 2 / machine.slowest_link_bytes_per_s
