"""The two backward products of each matmul, and how their factors correspond.

For O = I W the gradients are dI = dO W' and dW = I' dO: three products over the same m, k and n. One placement of a
matmul decides all three. Which factor is which is found by following the dims through views, from product to product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import networkx as nx
import torch
from torch import fx

from axograph.capture.program import facts
from axograph.passes.sharding.arguments import Value
from axograph.passes.sharding.atoms import Atoms, Unit
from axograph.passes.sharding.roles import Spot, spots
from axograph.passes.sharding.strategies import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """A backward product and the forward one that decides its placement."""

    forward: fx.Node
    units: Mapping[Unit, Unit]
    """For each part of a factor of the forward product, the same part in the backward product."""


def find_partners(
    options: Mapping[fx.Node, Options], gradients: Iterable[tuple[Value, Value, Atoms]] = ()
) -> dict[fx.Node, Partner]:
    """The forward product of each backward one, by backward node.

    `gradients` has each gradient, its parameter and the atoms of both: they have the same dims.
    """
    links = _links(options, gradients)
    products = [node for node in options if node.target is torch.ops.aten.mm.default]
    forward: dict[str, list[fx.Node]] = defaultdict(list)
    for node in products:
        if facts(node).phase == "forward":
            forward[facts(node).path].append(node)
    found = {}
    for node in products:
        about = facts(node)
        if about.phase == "backward":
            mine = _by_part(node, options[node], links)
            for candidate in forward[about.path]:
                theirs = _by_part(candidate, options[candidate], links)
                if mine is not None and theirs is not None and mine.keys() == theirs.keys():
                    found[node] = Partner(forward=candidate, units={theirs[c]: mine[c] for c in mine})
                    break
    return found


def _links(options: Mapping[fx.Node, Options], gradients: Iterable[tuple[Value, Value, Atoms]]) -> nx.utils.UnionFind:
    """Which parts of dims are the same one: seen through products and views, and in a gradient and its parameter."""
    links = nx.utils.UnionFind()
    same = [node for node, own in options.items() if node.target is torch.ops.aten.mm.default or own.rule.is_view]
    for gradient, parameter, atoms in gradients:
        for dim, sizes in enumerate(atoms):
            for atom in range(len(sizes)):
                links.union((gradient, dim, atom), (parameter, dim, atom))
        same += _added_up(gradient[0])
    for node in same:
        for unit in options[node].units:
            links.union(*spots(node, unit))
    return links


def _added_up(maker: fx.Node) -> Iterator[fx.Node]:
    """The additions that make one gradient of several: of a weight that is used more than once."""
    if maker.target is torch.ops.aten.add.Tensor:
        yield maker
        for argument in maker.all_input_nodes:
            yield from _added_up(argument)


def _by_part(node: fx.Node, options: Options, links: nx.utils.UnionFind) -> dict[Spot, Unit] | None:
    """The parts of the factors by what they are linked to; None where two are the same thing."""
    found: dict[Spot, Unit] = {}
    for unit in options.units:
        part = links[next(iter(spots(node, unit)))]
        if part in found:
            return None
        found[part] = unit
    return found
