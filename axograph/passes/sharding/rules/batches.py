"""Rules of operators on the last dims of a batch: matrices (linear algebra), rows of points, rows to be searched.

What lies in front of these dims is a batch of independent problems, and may be cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from axograph.passes.sharding.arguments import output_tensors, tensor_arguments
from axograph.passes.sharding.rule import Rule, Term

aten = torch.ops.aten


def _names(prefix: str, tensor: torch.Tensor, batch: int, sizes: dict[str, int]) -> Term:
    """The batch's factors in front, which all tensors share, and factors of the tensor's own."""
    names = [f"b{d}" if d < batch else f"{prefix}{d - batch}" for d in range(tensor.dim())]
    sizes.update(zip(names, tensor.shape, strict=True))
    return tuple((name,) if size > 1 else () for name, size in zip(names, tensor.shape, strict=True))


def _batched(last: int) -> Callable[[fx.Node], Rule]:
    """An operator on the last dims of its first tensor, these in number; they are whole.

    Where the tensors do not have the same batch (it is broadcast), nothing is free.
    """

    def rule(node: fx.Node) -> Rule:
        given = [a.meta["val"] for a in tensor_arguments(node)]
        made = output_tensors(node)
        batch = given[0].dim() - last
        shape = given[0].shape[:batch]
        alike = all(t.shape[:batch] == shape for t in (*given, *made) if t is not None and t.numel() > 0)
        sizes: dict[str, int] = {}
        inputs = tuple(_names(f"i{i}_", t, batch if alike else 0, sizes) for i, t in enumerate(given))
        outputs = []
        for i, tensor in enumerate(made):
            shared = batch if alike and tensor is not None and tensor.numel() > 0 else 0
            outputs.append(None if tensor is None else _names(f"o{i}_", tensor, shared, sizes))
        return Rule(
            inputs=inputs,
            outputs=tuple(outputs),
            sizes=sizes,
            whole=frozenset(name for name in sizes if not alike or name[0] != "b"),
            copied=frozenset(i for i, tensor in enumerate(made) if tensor is not None and tensor.numel() == 0),
            paddable=frozenset(),  # padding may be no matrix that the operator takes
        )

    return rule


def _distances(node: fx.Node) -> Rule:
    """`b p [m], b r [m] -> b p r`; its derivative, `b p r, b p [m], b r [m], b p r -> b p [m]`."""
    first, second = (a.meta["val"] for a in tensor_arguments(node)[1 if _is_derivative(node) else 0 :][:2])
    batch = first.dim() - 2
    sizes: dict[str, int] = {}
    rows = _names("p", first, batch, sizes)
    others = tuple(("r",) if dim == ("p0",) else dim for dim in _names("p", second, batch, dict(sizes)))
    sizes["r"] = second.shape[-2]
    between = (*rows[:-1], ("r",) if sizes["r"] > 1 else ())
    derivative = _is_derivative(node)
    return Rule(
        inputs=(between, rows, others, between) if derivative else (rows, others),
        outputs=(rows,) if derivative else (between,),
        sizes=sizes,
        whole=frozenset({"p1"}),
        linear=(frozenset({0}),) if derivative else (),
        paddable=frozenset(sizes) - {"p1", "r"},
        flops=3.0 * _differences(first, second),
    )


def _differences(first: torch.Tensor, second: torch.Tensor) -> float:
    """How many differences of coordinates there are between two sets of points."""
    return float(first.numel() * second.shape[-2])


def _is_derivative(node: fx.Node) -> bool:
    return node.target is aten._cdist_backward.default


def _bucketize(node: fx.Node) -> Rule:
    """Each value by itself, in boundaries that are whole."""
    values, boundaries = (a.meta["val"] for a in tensor_arguments(node))
    sizes: dict[str, int] = {"n": boundaries.shape[0]}
    term = _names("v", values, 0, sizes)
    bounds: Term = (("n",),) if sizes["n"] > 1 else ((),)
    return Rule(inputs=(term, bounds), outputs=(term,), sizes=sizes, whole=frozenset("n"))


def _searchsorted(node: fx.Node) -> Rule:
    """`b [n], b v -> b v`, or `[n], v... -> v...`: the sorted rows are whole."""
    rows, values, *order = (a.meta["val"] for a in tensor_arguments(node))
    batch = 0 if rows.dim() == 1 else rows.dim() - 1
    sizes: dict[str, int] = {}
    term = _names("v", values, batch, sizes)
    searched = _names("n", rows, batch, sizes)
    return Rule(
        inputs=(searched, term, *(searched for _ in order)),
        outputs=(term,),
        sizes=sizes,
        whole=frozenset({"n0"}),
        positions=frozenset({2}),
    )


RULES: dict[Any, Callable[[fx.Node], Rule]] = {
    aten._cdist_forward.default: _distances,
    aten._cdist_backward.default: _distances,
    aten.bucketize.Tensor: _bucketize,
    aten.searchsorted.Tensor: _searchsorted,
    **{
        op: _batched(2)
        for op in (
            aten._linalg_eigh.default,
            aten._linalg_solve_ex.default,
            aten._linalg_svd.default,
            aten.linalg_cholesky_ex.default,
            aten.linalg_inv_ex.default,
            aten.linalg_lu_factor_ex.default,
            aten.linalg_lu_solve.default,
            aten.linalg_matrix_exp.default,
            aten.linalg_qr.default,
            aten.linalg_solve_triangular.default,
        )
    },
}
