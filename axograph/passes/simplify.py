"""The pass `simplify`: equal nodes become one, chains of views become one view, a product and its bias one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from axograph.capture.program import FACTS, Program, facts, value
from axograph.passes.rewrite import Emitter, rebuild

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Simplify:
    """Do nothing twice. Collectives that two passes of the model share are merged with what surrounds them."""

    name: str = "simplify"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program with fewer nodes."""
        program = rebuild(program, _Merger().visit, "Simplified")
        return rebuild(program, _fuse, "Simplified")


class _Merger:
    """Emits each different node once."""

    def __init__(self) -> None:
        self.seen: dict[Any, fx.Node] = {}

    def visit(self, emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        view = _joined_view(node, args)
        if isinstance(view, fx.Node):
            return view
        if view is not None:
            args = view
        key = (node.target, _frozen(args), _frozen(kwargs), str(value_type(node)))
        known = self.seen.get(key)
        if known is None:
            known = self.seen[key] = emit.copy(node, args, kwargs)
        return known


def value_type(node: fx.Node) -> Any:
    """The element types of what a node makes: the same arguments may make several."""
    produced = node.meta.get("val")
    return produced.dtype if isinstance(produced, torch.Tensor) else None


def _joined_view(node: fx.Node, args: tuple[Any, ...]) -> fx.Node | tuple[Any, ...] | None:
    """A view of a view as one view of what lies behind, or as that itself; None for other nodes."""
    if node.target is aten.reshape.default:
        source, shape = args
        if list(value(source).shape) == list(shape):
            return source  # type: ignore[no-any-return]
        if source.target is aten.reshape.default:
            return _joined_view(node, (source.args[0], shape)) or (source.args[0], shape)
    elif node.target is aten.permute.default:
        source, order = args
        if list(order) == list(range(len(order))):
            return source  # type: ignore[no-any-return]
        if source.target is aten.permute.default:
            inner = source.args[1]
            both = [inner[dim] for dim in order]
            return _joined_view(node, (source.args[0], both)) or (source.args[0], both)
    return None


def _frozen(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_frozen(item) for item in argument)
    if isinstance(argument, dict):
        return tuple(sorted((key, _frozen(item)) for key, item in argument.items()))
    if isinstance(argument, float | int | bool | complex):
        return (type(argument).__name__, repr(argument))
    return argument


def _fuse(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    """A product to which a row is added, and which nothing else uses, is one `addmm`."""
    if node.target is aten.add.Tensor and len(args) == 2 and not kwargs:
        product, bias = args
        fits = (
            isinstance(product, fx.Node)
            and isinstance(bias, fx.Node)
            and product.target is aten.mm.default
            and len(node.args[0].users) == 1  # type: ignore[union-attr]
            and value(bias).dim() == 1
            and value(bias).shape[0] == value(product).shape[1]
            and value(bias).dtype == value(product).dtype
        )
        if fits:
            fused = emit.call(aten.addmm.default, bias, *product.args)
            fused.meta[FACTS] = facts(node)
            return fused
    return emit.copy(node, args, kwargs)
