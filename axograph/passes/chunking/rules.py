"""Rules of what only local programs have: collectives and waits, copies, a product with its bias.

The other operators have the rules of the whole program, for the sizes of one rank.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.rule import Rule, Term, parse_rule
from axograph.passes.sharding.rules import rule_of

aten = torch.ops.aten


def local_rule_of(node: fx.Node) -> Rule:
    """The rule of an operator of a local program."""
    namespace, _, name = node.target._schema.name.partition("::")  # type: ignore[union-attr]
    if namespace == "_c10d_functional":
        return _collective(node, name)
    if node.target is aten.contiguous.default:
        return _alike(node)
    if node.target is aten.addmm.default and node.args[0].meta["val"].dim() == 1:  # type: ignore[union-attr]
        return _biased_product(node)
    return rule_of(node)


def _alike(node: fx.Node) -> Rule:
    (tensor,) = (argument.meta["val"] for argument in tensor_arguments(node))
    term, sizes = _term(tensor)
    return Rule(inputs=(term,), outputs=(term,), sizes=sizes)


def _collective(node: fx.Node, name: str) -> Rule:
    """Element by element; but the ranks' parts are stacked along dim 0: `(G d0) d1`, or `G d1` to be exchanged."""
    (tensor,) = (argument.meta["val"] for argument in tensor_arguments(node))
    if name in ("all_reduce", "wait_tensor"):
        return _alike(node)
    term, sizes = _term(tensor)
    if name == "all_to_all_single":
        return Rule(inputs=(term,), outputs=(term,), sizes=sizes, whole=frozenset({"d0"}))
    result: torch.Tensor = node.meta["val"]
    smaller, larger = sorted((tensor.shape[0], result.shape[0]))
    sizes |= {"G": larger // smaller, "d0": smaller}
    part: Term = (("d0",) if smaller > 1 else (), *term[1:])
    stacked: Term = (tuple(name for name in ("G", "d0") if sizes[name] > 1), *term[1:])
    gathers = name == "all_gather_into_tensor"
    inputs, outputs = (part, stacked) if gathers else (stacked, part)
    return Rule(inputs=(inputs,), outputs=(outputs,), sizes=sizes, whole=frozenset({"G"}))


def _term(tensor: torch.Tensor) -> tuple[Term, dict[str, int]]:
    term = tuple((f"d{dim}",) if size > 1 else () for dim, size in enumerate(tensor.shape))
    return term, {f"d{dim}": size for dim, size in enumerate(tensor.shape)}


def _biased_product(node: fx.Node) -> Rule:
    """Parts of the sum over `k` would each have the bias: it is whole."""
    shapes = [argument.meta["val"].shape for argument in tensor_arguments(node)]
    sizes = (*shapes[1], shapes[2][1])
    return parse_rule("n, m [k], [k] n -> m n", shapes, flops=2.0 * math.prod(sizes))
