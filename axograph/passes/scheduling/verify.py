"""What must hold of every schedule, checked after it is made."""

from __future__ import annotations

from torch import fx

from axograph.capture.program import facts
from axograph.errors import ScheduleError
from axograph.passes.scheduling.memory import Lifetimes
from axograph.torch_private import collective_op


def verify(before: fx.Graph, after: fx.Graph, lifetimes: Lifetimes, cap_bytes: float) -> None:
    """Raise `ScheduleError` unless `after` is `before` in another order, safe to run, and within the cap on memory.

    Both have nodes of the same names; `lifetimes` are those of `before`.
    """
    _same_dataflow(before, after)
    _operands_first(after)
    _waited_for(after)
    names = {node.name: node for node in before.nodes}
    peak = lifetimes.peak([names[node.name] for node in after.nodes])
    if peak > cap_bytes:
        raise _refused("more memory lives at once than the cap allows", f"{peak:.0f} bytes, a cap of {cap_bytes:.0f}")


def collectives(graph: fx.Graph) -> list[tuple[str, str]]:
    """The collectives of a program in the order in which every rank issues them: (kind, axes)."""
    found = [facts(node).collective for node in graph.nodes]
    return [(moved.kind, ".".join(moved.axes)) for moved in found if moved is not None]


def _same_dataflow(before: fx.Graph, after: fx.Graph) -> None:
    def described(node: fx.Node) -> object:
        args = fx.map_arg((node.args, node.kwargs), lambda argument: f"%{argument.name}")
        return node.op, node.target, repr(args)

    ours, theirs = ({node.name: described(node) for node in graph.nodes} for graph in (after, before))
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            raise _refused("a node is lost, new, or computes something else", name)
    inputs = [[node.name for node in graph.nodes if node.op == "placeholder"] for graph in (before, after)]
    if inputs[0] != inputs[1]:
        raise _refused("the inputs are in another order", f"{inputs[1]}, not {inputs[0]}")


def _operands_first(graph: fx.Graph) -> None:
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        for argument in node.all_input_nodes:
            if argument not in seen:
                raise _refused("a value is used before it is made", f"{argument.name} in {node.format_node()}")
        seen.add(node)


def _waited_for(graph: fx.Graph) -> None:
    """Nothing but a wait may use what a collective has started to make, and each start has one."""
    wait = collective_op("wait_tensor")
    for node in graph.nodes:
        if facts(node).collective is None:
            continue
        early = [user.name for user in node.users if user.target is not wait]
        if early:
            raise _refused("a collective's result is used before its wait", f"{node.name} by {', '.join(early)}")
        if not node.users:
            raise _refused("a collective is never waited for", node.name)


def _refused(what: str, given: str) -> ScheduleError:
    return ScheduleError(
        f"this schedule cannot be run: {what}",
        asked="an order of the same program",
        given=given,
        rule="same dataflow; operands, then waits, then uses; one wait for each start; memory under the cap",
        remedy="leave the pass `schedule` out of the pipeline, and report the model",
    )
