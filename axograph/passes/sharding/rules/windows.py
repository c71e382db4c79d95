"""Rules of pooling, resizing and padding of images: positions are whole, batch and channels are free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import argument, output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Strategy, Term, parse_rule

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


def _sampled(node: fx.Node) -> Rule:
    """`b c [h] [w], b [y] [x] [2] -> b c [y] [x]`: images read at positions that a grid gives for each of them.

    The gradient of the grid is a sum over channels.
    """
    shapes = [a.meta["val"].shape for a in tensor_arguments(node)]
    image, grid, result = "b c [h] [w]", "b [y] [x] [n]", "b c [y] [x]"
    if node.target is aten.grid_sampler_2d.default:
        made = parse_rule(f"{image}, {grid} -> {result}", shapes, linear=(frozenset({0}),))
    else:
        made = parse_rule(f"{result}, {image}, {grid} -> {image}, {grid}", shapes, linear=(frozenset({0}),))
    wanted = output_tensors(node)
    return replace(made, outputs=tuple(o if t is not None else None for o, t in zip(made.outputs, wanted, strict=True)))


def _unfold(node: fx.Node) -> Rule:
    """Windows over one dim, which is whole; they are the last dim of the result."""
    (tensor,) = (a.meta["val"] for a in tensor_arguments(node))
    result: torch.Tensor = node.meta["val"]
    dim = argument(node, "dimension") % tensor.dim()
    sizes = {f"d{d}": size for d, size in enumerate(tensor.shape)}
    sizes |= {"window": result.shape[dim], "within": result.shape[-1]}
    names = [f"d{d}" for d in range(tensor.dim())]
    windows = [*names[:dim], "window", *names[dim + 1 :], "within"]
    return Rule(
        inputs=(tuple((name,) if sizes[name] > 1 else () for name in names),),
        outputs=(tuple((name,) if sizes[name] > 1 else () for name in windows),),
        sizes=sizes,
        whole=frozenset({f"d{dim}", "window", "within"}),
        linear=(frozenset({0}),) if tensor.is_floating_point() else (),
        is_view=True,
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten.max_pool2d_with_indices.default: _images(2, linear=False),
    aten.max_pool2d_with_indices_backward.default: _images(2),
    aten.avg_pool2d.default: _images(2),
    aten.avg_pool2d_backward.default: _images(2),
    aten._adaptive_avg_pool2d.default: _images(2),
    aten._adaptive_avg_pool2d_backward.default: _images(2),
    aten.adaptive_max_pool2d.default: _images(2, linear=False),
    aten.adaptive_max_pool2d_backward.default: _images(2),
    aten.max_pool3d_with_indices.default: _images(3, linear=False),
    aten.max_pool3d_with_indices_backward.default: _images(3),
    aten.avg_pool3d.default: _images(3),
    aten.avg_pool3d_backward.default: _images(3),
    aten._adaptive_avg_pool3d.default: _images(3),
    aten._adaptive_avg_pool3d_backward.default: _images(3),
    aten.adaptive_max_pool3d.default: _images(3, linear=False),
    aten.adaptive_max_pool3d_backward.default: _images(3),
    aten.replication_pad1d_backward.default: _images(1),
    aten.replication_pad2d_backward.default: _images(2),
    aten.replication_pad3d_backward.default: _images(3),
    aten.grid_sampler_2d.default: _sampled,
    aten.grid_sampler_2d_backward.default: _sampled,
    aten.unfold.default: _unfold,
    aten._upsample_bilinear2d_aa.default: _images(2),
    aten._upsample_bilinear2d_aa_backward.default: _images(2),
    aten._upsample_bicubic2d_aa.default: _images(2),
    aten._upsample_bicubic2d_aa_backward.default: _images(2),
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
