"""The quickest way to call each operator from generated code.

An operator called through `torch.ops` is looked up and its arguments are converted anew at each call, some five
microseconds on a CPU; the functions and methods that torch generates for the same operators take one. They have the
same signatures, and pick the same overloads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bitwise_and.Tensor: torch.bitwise_and,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.cos.default: torch.cos,
    aten.div.Scalar: torch.div,
    aten.div.Tensor: torch.div,
    aten.embedding.default: torch.embedding,
    aten.exp.default: torch.exp,
    aten.gather.default: torch.gather,
    aten.index_select.default: torch.index_select,
    aten.masked_fill.Scalar: torch.masked_fill,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Scalar: torch.mul,
    aten.mul.Tensor: torch.mul,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.neg.default: torch.neg,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.relu.default: torch.relu,
    aten.rsqrt.default: torch.rsqrt,
    aten.sin.default: torch.sin,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.tanh.default: torch.tanh,
    aten.where.self: torch.where,
}
"""Operators as functions of torch."""

METHODS: Mapping[Any, str] = {
    aten.add_.Tensor: "add_",
    aten.contiguous.default: "contiguous",
    aten.div_.Scalar: "div_",
    aten.div_.Tensor: "div_",
    aten.expand.default: "expand",
    aten.mul_.Scalar: "mul_",
    aten.mul_.Tensor: "mul_",
    aten.neg_.default: "neg_",
    aten.permute.default: "permute",
    aten.pow_.Scalar: "pow_",
    aten.relu_.default: "relu_",
    aten.reshape.default: "reshape",
    aten.sub_.Tensor: "sub_",
    aten.tanh_.default: "tanh_",
}
"""Operators as methods of tensors."""


def call_natively(graph: fx.Graph) -> None:
    """Replace operators by the functions and methods that are quicker to call."""
    for node in graph.nodes:
        if node.target in FUNCTIONS:
            node.target = FUNCTIONS[node.target]
        elif node.target in METHODS:
            node.op, node.target = "call_method", METHODS[node.target]
        elif node.target is aten.slice.Tensor and len(node.args) == 5 and node.args[4] == 1:
            x, dim, start, end, _ = node.args
            node.op, node.target, node.args = "call_method", "narrow", (x, dim, start, end - start)
