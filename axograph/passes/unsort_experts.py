"""The pass `unsort-experts`: the rows of a mixture of experts stay in the order of their tokens.

Grouped kernels want the rows sorted by expert, so models sort them, multiply, and put them back:

    order = sort(expert)[1]; rows = x[order // k]; y = grouped_mm(rows, weight, ends of each expert's rows)
    out = y[inverse of order]

A sort over all tokens needs all tokens on every rank. What happens to the rows in between happens to each of them
alone, so the sort can move into the product (`expert_mm`), and then nothing of it is left outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import axograph.passes.expert_products  # noqa: F401 - defines the operators
from axograph.capture.program import Program, value
from axograph.passes.rewrite import Emitter, rebuild
from axograph.passes.sharding.arguments import Value, argument, is_pick, resolve, tensor_arguments
from axograph.passes.sharding.rule import Rule
from axograph.passes.sharding.rules import rule_of

aten = torch.ops.aten
_SORTS = (aten.sort.default, aten.sort.stable)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsortExperts:
    """Undo the sorting of rows by expert where every use of it can be told."""

    name: str = "unsort-experts"
    preserves_numerics: bool = True

    def run(self, program: Program) -> Program:
        """The program with expert products on unsorted rows; a sort with other uses stays as it is."""
        forms: dict[fx.Node, _Form] = {}
        for node in program.graph.nodes:
            if node.target in _SORTS:
                forms |= _Sorted.by(node, program.graph) or {}

        def visit(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            form = forms.get(node)
            return form(emit, *args) if form is not None else emit.copy(node, args, kwargs)

        return rebuild(program, visit, "Unsorted")


_Form = Callable[..., Any]
"""Emits what stands for a node, given the emitter and the node's arguments, their rows unsorted."""


@dataclass(frozen=True, slots=True)
class _Role:
    """What a tensor is to a sort of rows by expert."""

    kind: str
    """"rows": sorted rows; "order": the row at each place; "tokens": the token of it; "inverse": the place of each
    row; "counts": the number of rows of each expert; "ends": where they end."""
    number: int = 0
    """Of rows, the dim that they lie along; of tokens, the rows of each; of counts and ends, the experts."""


_ROWS = _Role("rows", 0)


class _CannotTellError(Exception):
    """A use of sorted rows that could depend on their order."""


class _Sorted:
    """One sort of rows by expert: the role of every tensor that depends on it, and the form of every node."""

    def __init__(self, sort: fx.Node) -> None:
        self.expert = tensor_arguments(sort)[0]
        self.count = value(self.expert).shape[0]
        self.roles: dict[Value, _Role] = {(sort, 0): _ROWS, (sort, 1): _Role("order")}
        self.forms: dict[fx.Node, _Form] = {sort: self._unsorted}
        self.emitted: fx.Node | None = None
        """The expert of each row, in the new graph."""

    @classmethod
    def by(cls, sort: fx.Node, graph: fx.Graph) -> dict[fx.Node, _Form] | None:
        """The forms of all nodes that depend on a sort; None where one of them could depend on the order."""
        if value(tensor_arguments(sort)[0]).dim() != 1 or argument(sort, "descending"):
            return None
        self = cls(sort)
        try:
            for node in graph.nodes:
                if any(resolve(used) in self.roles for used in node.all_input_nodes):
                    self._follow(node)
        except _CannotTellError:
            return None
        return self.forms if "ends" in {role.kind for role in self.roles.values()} else None

    def _role(self, node: Any) -> _Role | None:
        return self.roles.get(resolve(node)) if isinstance(node, fx.Node) else None

    def _kind(self, node: Any) -> str:
        role = self._role(node)
        return role.kind if role is not None else ""

    def _follow(self, node: fx.Node) -> None:
        if is_pick(node):
            if resolve(node)[0] in self.forms:
                self.forms[node] = lambda emit, items, index: items[index]
            return
        special = _SPECIAL.get(str(node.target))
        if special is None or not special(self, node):
            self._row_by_row(node)

    def _becomes(self, node: fx.Node, role: _Role | None, form: _Form | None = None) -> bool:
        """Record what a node is and how it is emitted (None: as it is, on unsorted rows)."""
        if role is not None:
            self.roles[node, 0] = role
        if form is not None:
            self.forms[node] = form
        return True

    def _row_by_row(self, node: fx.Node) -> None:
        """An operator whose rule has the rows as a free factor does the same to each row, wherever it lies."""
        if node.op != "call_function":
            raise _CannotTellError
        rule = rule_of(node)
        factor = self._rows_of(node, rule)
        if (
            factor in rule.whole
            or factor in rule.leading
            or factor in rule.statistics
            or not _is_same_for_all(node, rule)
        ):
            raise _CannotTellError
        for i, term in enumerate(rule.outputs):
            for dim, factors in enumerate(term or ()):
                if factor in factors:
                    if factors != (factor,):
                        raise _CannotTellError
                    self.roles[node, i] = _Role("rows", dim)

    def _rows_of(self, node: fx.Node, rule: Rule) -> str:
        """The factor that the rows are, in all tensors that have it."""
        found: set[tuple[str, ...]] = set()
        plain: set[str] = set()
        for used, term in zip(tensor_arguments(node), rule.inputs, strict=True):
            role = self._role(used)
            if role is None:
                plain |= {factor for dim in term for factor in dim} if used.target is not aten.full.default else set()
            elif role.kind == "rows":
                found.add(term[role.number])
                plain |= {f for dim, factors in enumerate(term) for f in factors if dim != role.number}
            else:
                raise _CannotTellError
        if len(found) != 1:
            raise _CannotTellError
        (factors,) = found
        if len(factors) != 1 or factors[0] in plain:
            raise _CannotTellError
        return factors[0]

    # -- the operators that sort, and those that take what is sorted ----------------------------------------------

    def _divide(self, node: fx.Node) -> bool:
        """The token of each row: rows of one token lie next to each other before the sort."""
        by = node.args[1]
        if self._kind(node.args[0]) != "order" or not isinstance(by, int):
            return False
        return self._becomes(node, _Role("tokens", by), _first)

    def _index(self, node: fx.Node) -> bool:
        table, indices = node.args[:2]
        assert isinstance(indices, list | tuple)
        role, sorted_ = self._role(indices[0]), self._kind(table)
        if role is None or role.kind == "rows" or len(indices) != 1:
            return False
        length = value(table).shape[0]  # type: ignore[arg-type]
        if role.kind == "inverse" and self._role(table) == _ROWS:
            return self._becomes(node, None, _first)
        if role.kind == "order" and not sorted_ and length == self.count:
            return self._becomes(node, _ROWS, _first)
        if role.kind == "tokens" and not sorted_ and length * role.number == self.count:
            return self._becomes(node, _ROWS, _repeated(role.number))
        return False

    def _index_put(self, node: fx.Node) -> bool:
        """The inverse of the order; or a derivative of `_index`, which adds to zeros."""
        table, indices, given, *rest = node.args
        assert isinstance(table, fx.Node)
        assert isinstance(given, fx.Node)
        assert isinstance(indices, list | tuple)
        role, sorted_, adds = self._role(indices[0]), self._role(given), bool(rest and rest[0])
        length = value(table).shape[0]
        if role is None or len(indices) != 1 or self._role(table) is not None:
            return False
        if role == _ROWS:  # sums do not depend on the order
            return sorted_ == _ROWS and adds
        if role.kind == "order" and _counts_up(given, self.count):
            return self._becomes(node, _Role("inverse"), _third)
        if table.target is not aten.full.default or table.args[1] != 0:
            return False
        if role.kind == "inverse" and sorted_ is None and value(given).shape == value(table).shape:
            return self._becomes(node, _ROWS, _third)
        if role.kind == "order" and sorted_ == _ROWS and length == self.count:
            return self._becomes(node, None, _third)
        if role.kind == "tokens" and sorted_ == _ROWS and adds and length * role.number == self.count:
            return self._becomes(node, None, _summed(role.number))
        return False

    def _count(self, node: fx.Node) -> bool:
        bins, low, high = (argument(node, name) for name in ("bins", "min", "max"))
        if self._kind(node.args[0]) != "rows" or (low, high) != (0, bins - 1):
            return False
        return self._becomes(node, _Role("counts", bins), _first)

    def _end(self, node: fx.Node) -> bool:
        role = self._role(node.args[0])
        if role is None or role.kind != "counts":
            return False
        return self._becomes(node, _Role("ends", role.number), _first)

    def _grouped(self, node: fx.Node) -> bool:
        """`[rows, k], [e, k, n] -> [rows, n]`, or the product along the rows, `[k, rows], [rows, n] -> [e, k, n]`."""
        first, second = node.args[:2]
        ends = self._role(argument(node, "offs"))
        plain = argument(node, "bias") is None and argument(node, "out_dtype") in (None, value(node).dtype)
        if not plain or ends is None or ends.kind != "ends":
            return False
        if self._role(first) == _ROWS and self._role(second) is None:
            fits = value(second).shape[0] == ends.number  # type: ignore[arg-type]
            return fits and self._becomes(node, _ROWS, lambda emit, x, weight, *_: self._product(emit, x, weight))
        if self._role(first) == _Role("rows", 1) and self._role(second) == _ROWS:
            form = lambda emit, x, y, *_: self._outer(emit, _turned(emit, x), y, ends.number)  # noqa: E731
            return self._becomes(node, None, form)
        return False

    def _grouped_backward(self, node: fx.Node) -> bool:
        x, weight, ends, grad = node.args
        role = self._role(ends)
        if self._role(x) != _ROWS or self._role(grad) != _ROWS or role is None or self._role(weight) is not None:
            return False

        def form(emit: Emitter, x: fx.Node, weight: fx.Node, _: fx.Node, grad: fx.Node) -> list[fx.Node]:
            return [self._product(emit, grad, _turned(emit, weight)), self._outer(emit, x, grad, role.number)]

        return role.kind == "ends" and self._becomes(node, _ROWS, form)

    # -- what is emitted ----------------------------------------------------------------------------------------------

    def _unsorted(self, emit: Emitter, expert: fx.Node, *_: Any) -> list[fx.Node]:
        self.emitted = expert
        return [expert, expert]

    def _product(self, emit: Emitter, x: fx.Node, weight: fx.Node) -> fx.Node:
        return emit.call(torch.ops.axograph.expert_mm.default, x, weight, self.emitted)

    def _outer(self, emit: Emitter, x: fx.Node, y: fx.Node, experts: int) -> fx.Node:
        return emit.call(torch.ops.axograph.expert_outer.default, x, y, self.emitted, experts)


def _is_same_for_all(node: fx.Node, rule: Rule) -> bool:
    """Whether parts of a free factor are worked on alike: what is emitted otherwise may ask where a part lies."""
    return rule.lower is None or rule.is_view or bool(rule.statistics) or node.target in _LOWERED_TO_SHAPES


def _turned(emit: Emitter, x: fx.Node) -> fx.Node:
    """The last two dims the other way round."""
    rank = value(x).dim()
    return emit.call(aten.permute.default, x, [*range(rank - 2), rank - 1, rank - 2])


def _first(emit: Emitter, *args: Any) -> Any:
    return args[0]


def _third(emit: Emitter, *args: Any) -> Any:
    return args[2]


def _repeated(count: int) -> _Form:
    """Each token `count` times in a row."""

    def form(emit: Emitter, x: fx.Node, *_: Any) -> fx.Node:
        length, *rest = value(x).shape
        apart = emit.call(aten.reshape.default, x, [length, 1, *rest])
        return emit.call(
            aten.reshape.default, emit.call(aten.expand.default, apart, [length, count, *rest]), [-1, *rest]
        )

    return form


def _summed(count: int) -> _Form:
    """The sum of each token's `count` rows."""

    def form(emit: Emitter, table: fx.Node, indices: Any, rows: fx.Node, *_: Any) -> fx.Node:
        length, *rest = value(rows).shape
        apart = emit.call(aten.reshape.default, rows, [length // count, count, *rest])
        return emit.call(aten.sum.dim_IntList, apart, [1])

    return form


def _counts_up(node: fx.Node, count: int) -> bool:
    """Whether a tensor is `0 .. count - 1`."""
    known = {aten.arange.default: (count,), aten.arange.start: (0, count), aten.arange.start_step: (0, count)}
    return node.target in known and node.args[:2] == known[node.target]


_LOWERED_TO_SHAPES = {aten.slice_backward.default, aten.slice_scatter.default, aten.select_backward.default}
"""Operators that are emitted otherwise only because they are told a local shape."""
_SPECIAL: dict[str, Callable[[_Sorted, fx.Node], bool]] = {
    "aten.floor_divide.default": _Sorted._divide,
    "aten.index.Tensor": _Sorted._index,
    "aten.index_put.default": _Sorted._index_put,
    "aten.histc.default": _Sorted._count,
    "aten.cumsum.default": _Sorted._end,
    "aten._grouped_mm.default": _Sorted._grouped,
    "transformers.grouped_mm_fallback.default": _Sorted._grouped,
    "transformers.grouped_mm_fallback_backward.default": _Sorted._grouped_backward,
}
"""By name: the operators of transformers are there once it is imported."""
