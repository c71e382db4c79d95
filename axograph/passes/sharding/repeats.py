"""Which operators stand at the same place of identical layers: they are decided together.

A layer is all that lies under one numbered module ("model.layers.3"). Layers are identical where their operators are
the same ones, in the same order, on tensors divided in the same way, and take each other's results in the same way.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping

import torch
from torch import fx

from axograph.capture.program import facts
from axograph.passes.sharding.arguments import Value, resolve, tensor_arguments
from axograph.passes.sharding.atoms import Atoms, terms
from axograph.passes.sharding.rule import Rule

_NUMBERED = re.compile(r"^(?:\w+\.)*?(\d+)(?=\.|$)")


def operator_keys(
    rules: Mapping[fx.Node, Rule],
    atoms: Mapping[Value, Atoms],
    forward: Mapping[fx.Node, fx.Node],
    pins: Mapping[fx.Node, Hashable],
) -> dict[fx.Node, Hashable]:
    """A key for each operator, equal for operators at the same place of identical layers.

    `forward` has the forward product of each backward one, which decides it; `pins` what the user asks of a product:
    layers of which different things are asked are not identical. Operators of no module, such as
    additions of gradients, are known by what makes their arguments.
    """
    layers: dict[str, list[fx.Node]] = defaultdict(list)
    for node in rules:
        if facts(node).path:
            layers[block(facts(node).path) or facts(node).path].append(node)
    keys: dict[fx.Node, Hashable] = {}
    kinds: dict[Hashable, int] = {}
    for layer, nodes in layers.items():
        place = {node: i for i, node in enumerate(nodes)}
        described = tuple((_describe(node, rules[node], atoms, place, forward), pins.get(node)) for node in nodes)
        kind = (unnumbered(layer), _parity(layer, nodes), described)
        number = kinds.setdefault(kind, len(kinds))
        keys |= {node: (unnumbered(facts(node).path), number, i) for i, node in enumerate(nodes)}
    numbers = {key: i for i, key in enumerate(dict.fromkeys(keys.values()))}
    for node, rule in rules.items():
        if node not in keys:
            sources = [resolve(argument) for argument in tensor_arguments(node)]
            made_by = tuple((numbers.get(keys.get(maker), maker.name), output) for maker, output in sources)
            keys[node] = (made_by, _describe(node, rule, atoms, {}, {}))
            numbers.setdefault(keys[node], len(numbers))
    return keys


def unnumbered(path: str) -> str:
    """A path with its numbers left out."""
    return re.sub(r"\d+", "#", path)


def block(path: str) -> str:
    """The part of a module's path up to its first number: "model.layers.3"; "" where there is none."""
    numbered = _NUMBERED.match(path)
    return path[: numbered.end()] if numbered else ""


def _describe(
    node: fx.Node,
    rule: Rule,
    atoms: Mapping[Value, Atoms],
    place: Mapping[fx.Node, int],
    forward: Mapping[fx.Node, fx.Node],
) -> Hashable:
    """An operator as it looks from inside its layer."""
    about = facts(node)
    sources = [resolve(argument) for argument in tensor_arguments(node)]
    inside = tuple((place.get(maker), output) for maker, output in sources)
    divided = tuple(atoms[value] for value, _ in terms(node, rule))
    decided_by = place.get(forward[node]) if node in forward else None
    return (unnumbered(about.path), about.phase, str(node.target), str(rule), divided, inside, decided_by)


def _parity(layer: str, nodes: list[fx.Node]) -> int:
    """0 or 1 for layers of one product: the best layout of a stack of them alternates. 0 for all others."""
    products = [node for node in nodes if node.target is torch.ops.aten.mm.default and facts(node).phase == "forward"]
    numbered = _NUMBERED.match(layer)
    return int(numbered[1]) % 2 if numbered and len(products) == 1 else 0
