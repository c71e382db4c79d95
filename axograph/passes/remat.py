"""What backward makes again rather than being given it: the insides of blocks, and of checkpointed calls.

A region is a call that the model wrapped in `torch.utils.checkpoint.checkpoint`, or, where blocks are asked for, all
that lies under one numbered module ("model.layers.3"). Of a region, backward is given what it takes from outside, and
the results of its collectives, so that none is communicated twice; the rest is made again. Weights are gathered again,
or held, by the rule of the pass `split`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Literal, get_args

from torch import fx

from axograph.capture.program import facts
from axograph.errors import AxographError
from axograph.passes.dataflow import is_view
from axograph.passes.sharding.arguments import is_pick
from axograph.passes.sharding.repeats import block
from axograph.torch_private import collective_op

Remat = Literal["none", "block", "auto"]
"""What is recomputed beside checkpointed calls: nothing, the insides of blocks, or as little as fits into memory."""


def known_remat(asked: object) -> Remat:
    """What the user asked for; raises `AxographError` for anything unknown."""
    for name in get_args(Remat):
        if asked == name:
            return name  # type: ignore[no-any-return]
    raise AxographError(
        f"no way to recompute is called {asked!r}",
        asked=f"remat={asked!r}",
        given="what forward makes and backward needs",
        rule='remat is "none" (saved), "block" (made again in each block) or "auto" (as little made again as fits)',
        remedy='remat="auto"',
    )


def region(node: fx.Node, *, blocks: bool) -> Hashable:
    """The checkpointed call that a node lies in, or with `blocks` the block; None where it lies in neither."""
    about = facts(node.all_input_nodes[0] if is_pick(node) else node)
    if about.checkpoint is not None:
        return about.checkpoint
    return (block(about.path) or None) if blocks else None


def recomputed(graph: fx.Graph, forward: Collection[fx.Node], *, blocks: bool) -> set[fx.Node]:
    """The operators of the forward half that backward runs again where it needs what they make.

    Whatever leaves its region, itself or as a view, is not among them, nor are collectives.
    """
    regions = {node: region(node, blocks=blocks) for node in forward if node.op == "call_function"}
    wait = collective_op("wait_tensor")
    leaving: set[fx.Node] = set()
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if regions.get(node) is None:
            continue
        for user in node.users:
            if user.op == "output" or user in forward:
                inside = regions.get(user) == regions[node]
                if not inside or (user in leaving and (is_view(user) or is_pick(user))):
                    leaving.add(node)
        several = isinstance(node.meta.get("val"), list | tuple)  # its outputs leave, or stay, one by one
        if (several or node not in leaving) and facts(node).collective is None and node.target is not wait:
            found.add(node)
    return found
