"""Rules of pooling, resizing and padding of images: positions are whole, batch and channels are free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term

aten = torch.ops.aten


def _images(positions: int, linear: bool = True) -> Callable[[fx.Node], Rule]:
    """An operator on the last dims of its tensors, these `positions` in number, image by image.

    A derivative is linear in the gradient that it takes first.
    """

    def rule(node: fx.Node) -> Rule:
        sizes: dict[str, int] = {}

        def term(name: str, tensor: torch.Tensor) -> Term:
            free = tensor.dim() - positions
            names = [f"d{d}" if d < free else f"{name}{d - free}" for d in range(tensor.dim())]
            sizes.update(zip(names, tensor.shape, strict=True))
            return tuple((name,) if size > 1 else () for name, size in zip(names, tensor.shape, strict=True))

        inputs = tuple(term(f"i{i}_", a.meta["val"]) for i, a in enumerate(tensor_arguments(node)))
        outputs = tuple(term(f"o{i}_", t) for i, t in enumerate(output_tensors(node)) if t is not None)
        return Rule(
            inputs=inputs,
            outputs=outputs,
            sizes=sizes,
            whole=frozenset(name for name in sizes if not name.startswith("d")),
            linear=(frozenset({0}),) if linear else (),
            positions=frozenset(
                i for i, a in enumerate(tensor_arguments(node)) if not a.meta["val"].is_floating_point()
            ),
            lower=_lower_to_input_size if argument(node, "input_size") is not None else None,
        )

    return rule


def _lower_to_input_size(emit: Any, node: fx.Node, args: Any, kwargs: Any, strategy: Strategy) -> fx.Node:
    """The derivative of a resize is told the shape of what was resized, its local one here."""
    placement = strategy.outputs[0]
    assert placement is not None
    grad, output_size, _, *rest = args
    made: fx.Node = emit.call(node.target, grad, output_size, list(placement.local_shape(emit.grid)), *rest, **kwargs)
    return made


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.max_pool2d_with_indices.default: _images(2, linear=False),
    aten.max_pool2d_with_indices_backward.default: _images(2),
    aten.avg_pool2d.default: _images(2),
    aten.avg_pool2d_backward.default: _images(2),
    aten._adaptive_avg_pool2d.default: _images(2),
    aten._adaptive_avg_pool2d_backward.default: _images(2),
    aten.reflection_pad1d.default: _images(1),
    aten.reflection_pad1d_backward.default: _images(1),
    aten.reflection_pad2d.default: _images(2),
    aten.reflection_pad2d_backward.default: _images(2),
    aten.upsample_nearest1d.default: _images(1),
    aten.upsample_nearest1d_backward.default: _images(1),
    aten.upsample_nearest2d.default: _images(2),
    aten.upsample_nearest2d_backward.default: _images(2),
    aten.upsample_bilinear2d.default: _images(2),
    aten.upsample_bilinear2d_backward.default: _images(2),
    aten.upsample_bicubic2d.default: _images(2),
    aten.upsample_bicubic2d_backward.default: _images(2),
}
