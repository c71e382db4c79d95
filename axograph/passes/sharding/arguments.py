"""The tensors that go into and come out of a node, in a fixed order."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

Value = tuple[fx.Node, int]
"""A tensor of the graph: the node that makes it, and which of its outputs it is."""


def tensor_arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes of all tensor arguments, in order, repeated where an argument is."""
    found: list[fx.Node] = []
    _collect(node.args, found)
    _collect(node.kwargs.values(), found)
    return found


def _collect(arguments: Iterable[Any], found: list[fx.Node]) -> None:
    for given in arguments:
        if isinstance(given, fx.Node):
            if isinstance(given.meta.get("val"), torch.Tensor):
                found.append(given)
        elif isinstance(given, list | tuple):
            _collect(given, found)


def argument(node: fx.Node, name: str) -> Any:
    """What a node gives the argument of this name in its operator's schema; its default where it gives nothing."""
    declared = node.target._schema.arguments  # type: ignore[union-attr]
    for position, known in enumerate(declared):
        if known.name == name:
            return node.args[position] if position < len(node.args) else node.kwargs.get(name, known.default_value)
    return None


def resolve(node: fx.Node) -> Value:
    """The tensor that a node stands for: picking from a tuple is not making."""
    if node.op == "call_function" and node.target is operator.getitem:
        producer, index = node.args
        assert isinstance(producer, fx.Node)
        assert isinstance(index, int)
        return producer, index
    return node, 0


def is_pick(node: fx.Node) -> bool:
    """Whether a node only picks one output of another."""
    return node.op == "call_function" and node.target is operator.getitem


def output_tensors(node: fx.Node) -> list[torch.Tensor | None]:
    """The fake tensors that a node makes, by output index; None for outputs that are no tensors."""
    produced: Any = node.meta.get("val")
    outputs = produced if isinstance(produced, list | tuple) else [produced]
    return [output if isinstance(output, torch.Tensor) else None for output in outputs]


def tensor_of(value: Value) -> torch.Tensor:
    """The fake tensor of a value."""
    tensor = output_tensors(value[0])[value[1]]
    assert tensor is not None
    return tensor


def kind_of(argument: Any) -> Any:
    """All that the result of a call depends on: of tensors shape, strides, type and device; of the rest the value."""
    if isinstance(argument, fx.Node):
        return kind_of(argument.meta.get("val"))
    if isinstance(argument, torch.Tensor):
        return _kind_of_tensor(argument)
    if isinstance(argument, list | tuple):
        return tuple(kind_of(item) for item in argument)
    if isinstance(argument, dict):
        return tuple((key, kind_of(item)) for key, item in argument.items())
    kind = type(argument)
    return (kind, argument if kind in _EXACT else repr(argument))


_EXACT = {int, bool, str, type(None)}
"""Types whose equal values are the same in every respect; 0.0 and -0.0 are not."""

_KIND = "axograph_kind"


def _kind_of_tensor(tensor: torch.Tensor) -> Any:
    """Kept on the tensor: it is asked for often, and is the same as long as nothing changes a tensor in place."""
    found = tensor.__dict__.get(_KIND)
    if found is None:
        found = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        tensor.__dict__[_KIND] = found
    return found
