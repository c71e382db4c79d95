"""Rules of fused attention, forward and backward, on the CPU and on CUDA: batch and heads may be cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import output_tensors
from axograph.passes.sharding.rule import Rule, Term

aten = torch.ops.aten


def _attention(*outputs: str) -> Callable[[fx.Node], Rule]:
    """A rule from the names that the operator's schema gives its arguments, and the roles of its outputs."""

    def rule(node: fx.Node) -> Rule:
        given = _tensors_by_name(node)
        sizes = _sizes(given)
        inputs = tuple(_term(_ROLES.get(name, ""), tensor, sizes) for name, tensor in given.items())
        made = output_tensors(node)
        roles = (*outputs, *("" for _ in made[len(outputs) :]))
        results = tuple(None if t is None else _term(_ROLES[r], t, sizes) for r, t in zip(roles, made, strict=True))
        flops = 4.0 * math.prod(sizes[name] for name in "bhgste")
        backward = next(iter(given)).startswith("grad_out")
        return Rule(
            inputs=inputs,
            outputs=results,
            sizes=sizes,
            whole=frozenset(sizes) - {"b", "h", "g"},
            copied=frozenset(range(len(outputs), len(made))),
            flops=2.5 * flops if backward else flops,
            linear=(frozenset({0}),) if backward else (),
        )

    return rule


_ROLES = {
    "grad_out": "b h s v",
    "grad_out_": "b h s v",
    "query": "b h s e",
    "key": "b k t e",
    "value": "b k t v",
    "out": "b h s v",
    "logsumexp": "b h l",
    "attn_mask": "b h s t",
    "attn_bias": "b h s t",
    "": "",
}
"""The dims of arguments and outputs: `k` the heads of keys and values, `l` the (padded) length of queries."""


def _tensors_by_name(node: fx.Node) -> dict[str, torch.Tensor]:
    """The tensor arguments, in order, under the names of the schema."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = [(argument.name, value) for argument, value in zip(schema, node.args, strict=False)]
    given += list(node.kwargs.items())
    tensors = {name: value.meta["val"] for name, value in given if isinstance(value, fx.Node)}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def _sizes(given: dict[str, torch.Tensor]) -> dict[str, int]:
    query, key, value = (given[name] for name in ("query", "key", "value"))
    heads, kept = query.shape[1], key.shape[1]
    sizes = {"b": query.shape[0], "h": kept, "g": heads // kept, "s": query.shape[2], "e": query.shape[3]}
    return sizes | {"t": key.shape[2], "v": value.shape[3], "l": query.shape[2]}


def _term(role: str, tensor: torch.Tensor, sizes: dict[str, int]) -> Term:
    """Heads of queries are `(h g)`: each of the h heads of keys serves a group of g."""
    names = role.split()
    if role == _ROLES["logsumexp"] and tensor.dim() == 4:
        names.append("1")
        sizes["1"] = 1
    if tensor.dim() != len(names):
        names = [f"p{len(sizes)}_{dim}" for dim in range(tensor.dim())]
        sizes |= dict(zip(names, tensor.shape, strict=True))
    term = []
    for name, size in zip(names, tensor.shape, strict=True):
        if name == "l":
            sizes["l"] = size
        dim = {"h": ("h", "g"), "k": ("h",)}.get(name, (name,))
        term.append(tuple(factor for factor in dim if sizes[factor] > 1) if size > 1 else ())
    return tuple(term)


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention("out", "logsumexp"),
    aten._scaled_dot_product_flash_attention.default: _attention("out", "logsumexp"),
    aten._scaled_dot_product_efficient_attention.default: _attention("out", "logsumexp"),
    aten._scaled_dot_product_cudnn_attention.default: _attention("out", "logsumexp"),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention("query", "key", "value"),
    aten._scaled_dot_product_flash_attention_backward.default: _attention("query", "key", "value"),
    aten._scaled_dot_product_efficient_attention_backward.default: _attention("query", "key", "value", "attn_bias"),
    aten._scaled_dot_product_cudnn_attention_backward.default: _attention("query", "key", "value"),
}
