"""The pass `normalize`: few forms of each operator, so that few rules cover all of them.

All view-like operators become `reshape`, `permute`, `expand` or `slice`, their bounds positive; splits become slices,
stacks concatenations; a biased matmul is a matmul and an addition (`simplify` fuses them again where no collective
comes between); full reductions name their dims; identities go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from axograph.capture.program import Program, facts, value, values
from axograph.errors import UnsupportedError
from axograph.passes.rewrite import Emitter, rebuild
from axograph.passes.sharding.arguments import argument
from axograph.passes.strided import as_strided, as_strided_scatter

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize:
    """Rewrite a captured program into the operators that the rules know."""

    name: str = "normalize"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """Raises `UnsupportedError` at operators that still draw from a generator of torch."""
        for node in program.graph.nodes:
            if node.op == "call_function":
                _refuse_random(node)
        return rebuild(program, _visit, "Normalized")


def _refuse_random(node: fx.Node) -> None:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags or not _draws(node):
        return
    about = facts(node)
    name = str(node.target).split(".")[1]
    raise UnsupportedError(
        f"{node.target} draws random numbers in a way that no grid can repeat",
        asked=f"{about.path or 'the model'} on a grid of ranks",
        given=about.source or str(node),
        rule="a random number is a function of a key, its place in the program and its index, the same on every grid; "
        "permutations, choices, counts, and what comes from a generator of one's own are not made so",
        remedy=f"{_INSTEAD.get(name, _OTHERS)}, or draw it outside and pass it as an input",
    )


_INSTEAD = {
    "randperm": "torch.rand(n).argsort()",
    "multinomial": "(weights / torch.empty_like(weights).exponential_()).topk(n).indices",
}
_OTHERS = "dropout, rand, randn, randint, bernoulli, uniform, normal or exponential, without generator="


def _draws(node: fx.Node) -> bool:
    """Attention operators carry a dropout probability and are random only where it is not zero."""
    probability = argument(node, "dropout_p")
    return probability is None or probability != 0.0


def _visit(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node | None:
    form = _FORMS.get(node.target)
    if form is None and getattr(node.target, "__name__", "") == "getitem":
        form = _getitem
    if form is not None:
        return form(emit, node, *args, **kwargs)  # type: ignore[no-any-return]
    return emit.copy(node, args, kwargs)


def _elementwise(op: Any) -> Callable[..., fx.Node]:
    """A view that changes the elements it shows, as an operator that makes them."""

    def form(emit: Emitter, node: fx.Node, x: fx.Node) -> fx.Node:
        return emit.call(op, x)

    return form


def _drop(emit: Emitter, node: fx.Node, *args: Any, **kwargs: Any) -> None:
    return None


def _identity(emit: Emitter, node: fx.Node, x: fx.Node, **kwargs: Any) -> fx.Node:
    return x


def _as_reshape(emit: Emitter, node: fx.Node, x: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    shape = list(value(node).shape)
    return x if list(value(x).shape) == shape else emit.call(aten.reshape.default, x, shape)


def _t(emit: Emitter, node: fx.Node, x: fx.Node) -> fx.Node:
    return emit.call(aten.permute.default, x, [1, 0]) if value(x).dim() == 2 else x


def _transpose(emit: Emitter, node: fx.Node, x: fx.Node, first: int, second: int) -> fx.Node:
    order = list(range(value(x).dim()))
    order[first], order[second] = order[second], order[first]
    return emit.call(aten.permute.default, x, order)


def _expand(emit: Emitter, node: fx.Node, x: fx.Node, sizes: list[int], **kwargs: Any) -> fx.Node:
    shape = list(value(node).shape)
    return x if list(value(x).shape) == shape else emit.call(aten.expand.default, x, shape)


def _slice(
    emit: Emitter,
    node: fx.Node,
    x: fx.Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> fx.Node:
    size = value(x).shape[dim]
    bounds = slice(start, end, step).indices(size)
    if bounds == (0, size, 1):
        return x
    return emit.call(aten.slice.Tensor, x, dim % value(x).dim(), *bounds)


def _slice_backward(
    emit: Emitter, node: fx.Node, grad: fx.Node, shape: list[int], dim: int, start: int, end: int, step: int
) -> fx.Node:
    bounds = slice(start, end, step).indices(shape[dim])
    if bounds == (0, shape[dim], 1):
        return grad
    return emit.call(aten.slice_backward.default, grad, shape, dim % len(shape), *bounds)


def _slice_scatter(
    emit: Emitter,
    node: fx.Node,
    x: fx.Node,
    part: fx.Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> fx.Node:
    size = value(x).shape[dim]
    bounds = slice(start, end, step).indices(size)
    if bounds == (0, size, 1):
        return part
    return emit.call(aten.slice_scatter.default, x, part, dim % value(x).dim(), *bounds)


def _split(emit: Emitter, node: fx.Node, x: fx.Node, sizes: Any, dim: int = 0) -> Any:
    """Each piece as a slice; the `getitem` nodes that follow pick from this list."""
    lengths = [piece.shape[dim] for piece in values(node)]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [
        emit.call(aten.slice.Tensor, x, dim % value(x).dim(), start, start + length, 1)
        for start, length in zip(starts, lengths, strict=True)
    ]


def _unbind(emit: Emitter, node: fx.Node, x: fx.Node, dim: int = 0) -> Any:
    """Each position as a selection; the `getitem` nodes that follow pick from this list."""
    return [emit.call(aten.select.int, x, dim % value(x).dim(), i) for i in range(value(x).shape[dim])]


def _stack(emit: Emitter, node: fx.Node, pieces: list[fx.Node], dim: int = 0) -> fx.Node:
    """A concatenation along a new dim of size 1."""
    shape = list(value(node).shape)
    dim %= len(shape)
    shape[dim] = 1
    return emit.call(aten.cat.default, [emit.call(aten.reshape.default, piece, shape) for piece in pieces], dim)


def _repeat(emit: Emitter, node: fx.Node, x: fx.Node, repeats: list[int]) -> fx.Node:
    """Each dim expanded in front of itself, and the two of them taken as one."""
    sizes = [1] * (len(repeats) - value(x).dim()) + list(value(x).shape)
    apart = emit.call(aten.reshape.default, x, [n for size in sizes for n in (1, size)])
    pairs = zip(repeats, sizes, strict=True)
    expanded = emit.call(aten.expand.default, apart, [n for pair in pairs for n in pair])
    return emit.call(aten.reshape.default, expanded, list(value(node).shape))


def _getitem(emit: Emitter, node: fx.Node, items: Any, index: int) -> fx.Node:
    if isinstance(items, list):
        piece: fx.Node = items[index]
        return piece
    return emit.copy(node, (items, index), {})


def _addmm(
    emit: Emitter, node: fx.Node, bias: fx.Node, a: fx.Node, b: fx.Node, *, beta: Any = 1, alpha: Any = 1
) -> fx.Node:
    product = emit.call(aten.mm.default, a, b)
    if alpha != 1:
        product = emit.call(aten.mul.Scalar, product, alpha)
    if beta != 1:
        bias = emit.call(aten.mul.Scalar, bias, beta)
    return emit.call(aten.add.Tensor, product, bias)


def _baddbmm(
    emit: Emitter, node: fx.Node, bias: fx.Node, a: fx.Node, b: fx.Node, *, beta: Any = 1, alpha: Any = 1
) -> fx.Node:
    product = emit.call(aten.bmm.default, a, b)
    if alpha != 1:
        product = emit.call(aten.mul.Scalar, product, alpha)
    if beta == 0:
        return product
    if beta != 1:
        bias = emit.call(aten.mul.Scalar, bias, beta)
    return emit.call(aten.add.Tensor, product, bias)


def _reduce_all(emit: Emitter, node: fx.Node, x: fx.Node, **kwargs: Any) -> fx.Node:
    op = aten.sum.dim_IntList if node.target is aten.sum.default else aten.mean.dim
    return emit.call(op, x, list(range(value(x).dim())), False, **kwargs)


def _extreme(emit: Emitter, node: fx.Node, x: fx.Node) -> fx.Node:
    op = aten.amax.default if node.target is aten.max.default else aten.amin.default
    return emit.call(op, x, list(range(value(x).dim())), False)


def _cast(emit: Emitter, node: fx.Node, x: fx.Node, **kwargs: Any) -> fx.Node:
    """A copy that changes neither type nor device is none."""
    was, now = value(x), value(node)
    if (was.dtype, was.device) == (now.dtype, now.device):
        return x
    return emit.copy(node, (x,), kwargs)


def _overwritten(emit: Emitter, node: fx.Node, old: fx.Node, new: fx.Node, *args: Any) -> fx.Node:
    """What another tensor is overwritten with, in that tensor's type and shape."""
    result = value(node)
    if value(new).dtype != result.dtype:
        new = emit.call(aten._to_copy.default, new, dtype=result.dtype)
    return new if value(new).shape == result.shape else emit.call(aten.expand.default, new, list(result.shape))


def _attention(emit: Emitter, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    """Masks have a batch and heads, be they of size 1."""
    mask = kwargs.get("attn_mask")
    if mask is not None and value(mask).dim() < 4:
        shape = list(value(mask).shape)
        kwargs["attn_mask"] = emit.call(aten.reshape.default, mask, [1] * (4 - len(shape)) + shape)
    return emit.copy(node, args, kwargs)


def _index_put(
    emit: Emitter, node: fx.Node, x: fx.Node, indices: list[Any], values: fx.Node, accumulate: bool = False
) -> fx.Node:
    """One value put where a mask is set is a choice, element by element."""
    mask = indices[0]
    masked = len(indices) == 1 and mask is not None and value(mask).dtype == torch.bool
    if not masked or accumulate or value(values).numel() != 1:
        return emit.copy(node, (x, indices, values, accumulate), {})
    shape = list(value(mask).shape)
    mask = emit.call(aten.reshape.default, mask, shape + [1] * (value(x).dim() - len(shape)))
    return emit.call(aten.where.self, mask, emit.call(aten.reshape.default, values, []), x)


def _scalar(emit: Emitter, node: fx.Node, number: float, **kwargs: Any) -> fx.Node:
    result = value(node)
    return emit.call(aten.full.default, [], number, dtype=result.dtype, device=result.device)


def _filled(default: Any) -> Callable[..., fx.Node]:
    """A tensor of one value, whatever the form: the shape and type of the result say the rest."""

    def form(emit: Emitter, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        result = value(node)
        fill = default
        if fill is None:
            fill = argument(node, "value" if node.target is aten.fill.Scalar else "fill_value")
        return emit.call(aten.full.default, list(result.shape), fill, dtype=result.dtype, device=result.device)

    return form


_FORMS: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _identity,
    aten.alias.default: _identity,
    aten.contiguous.default: _identity,
    aten.clone.default: _identity,
    aten.lift_fresh_copy.default: _identity,
    aten.lift_fresh.default: _identity,
    aten._assert_tensor_metadata.default: _drop,
    aten.view.default: _as_reshape,
    aten._unsafe_view.default: _as_reshape,
    aten.reshape.default: _as_reshape,
    aten.unsqueeze.default: _as_reshape,
    aten.squeeze.dim: _as_reshape,
    aten.squeeze.dims: _as_reshape,
    aten.squeeze.default: _as_reshape,
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _slice_backward,
    aten.slice_scatter.default: _slice_scatter,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split,
    aten.unsafe_chunk.default: _split,
    aten.unbind.int: _unbind,
    aten.stack.default: _stack,
    aten.repeat.default: _repeat,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _baddbmm,
    aten.sum.default: _reduce_all,
    aten.mean.default: _reduce_all,
    aten.max.default: _extreme,
    aten.min.default: _extreme,
    aten._to_copy.default: _cast,
    aten.copy.default: _overwritten,
    aten.fill.Tensor: _overwritten,
    **{
        op: _filled(0)
        for op in (
            aten.zeros.default,
            aten.zeros_like.default,
            aten.new_zeros.default,
            aten.empty.memory_format,
            aten.empty_like.default,
            aten.empty_strided.default,
            aten.new_empty.default,
            aten.new_empty_strided.default,
        )
    },
    **{op: _filled(1) for op in (aten.ones.default, aten.ones_like.default, aten.new_ones.default)},
    **{op: _filled(None) for op in (aten.full_like.default, aten.new_full.default, aten.fill.Scalar)},
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scalar_tensor.default: _scalar,
    aten.as_strided.default: as_strided,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten._conj.default: _elementwise(aten._conj_physical.default),
    aten._neg_view.default: _elementwise(aten.neg.default),
}
