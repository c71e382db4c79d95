"""Graphs as functions that take their inputs in one list and empty it, so that each value dies with its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen

from axograph.runtime.native import call_natively
from axograph.torch_private import collective_op

aten = torch.ops.aten

Boxed = Callable[[list[Any]], Sequence[Any]]


class _BoxedCode(CodeGen):
    """Generates `def forward(self, inputs)`, which unpacks the list and then lets go of it."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        names = [name for name in free_vars if name != "self"]
        unpack = f"    {', '.join(names)}, = inputs\n" if names else ""
        return f"def {self._func_name}(self, inputs){maybe_return_annotation}:\n{unpack}    inputs.clear()"


def boxed(graph: fx.Graph) -> Boxed:
    """A function that runs a copy of the graph."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    _write_in_place(copied)
    _hold_what_is_sent(copied)
    call_natively(copied)
    copied.set_codegen(_BoxedCode())
    run: Boxed = fx.GraphModule(torch.nn.Module(), copied).forward
    return run


def _hold_what_is_sent(graph: fx.Graph) -> None:
    """Let the input of a collective live until the wait, so that its memory is not given away while it is read.

    An all-reduce works on a copy of its own.
    """
    wait, all_reduce = collective_op("wait_tensor"), collective_op("all_reduce")

    def waited(result: torch.Tensor, *sent: torch.Tensor) -> torch.Tensor:
        finished: torch.Tensor = wait(result)
        return finished

    for node in graph.nodes:
        if node.target is wait and isinstance(node.args[0], fx.Node) and node.args[0].target is not all_reduce:
            node.target, node.args = waited, (node.args[0], *node.args[0].all_input_nodes)


_SCATTERS = {aten.scatter.src: aten.scatter_.src, aten.scatter.value: aten.scatter_.value}
_IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.div.Scalar: aten.div_.Scalar,
    aten.neg.default: aten.neg_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.relu.default: aten.relu_.default,
    aten.pow.Tensor_Scalar: aten.pow_.Scalar,
}
_COMMUTE = {aten.add.Tensor, aten.mul.Tensor}
_FRESH = {
    *_IN_PLACE,
    *_IN_PLACE.values(),
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.sum.dim_IntList,
    aten.embedding.default,
    aten.gelu_backward.default,
    aten.silu.default,
    aten.silu_backward.default,
    aten.tanh_backward.default,
    aten.threshold_backward.default,
    aten._log_softmax_backward_data.default,
    aten.embedding_dense_backward.default,
}
"""Operators whose result shares its storage with nothing else that lives."""


def _write_in_place(graph: fx.Graph) -> None:
    """Let an operator write where its operand lies, if nothing else can see that: less memory, fewer page faults."""
    for node in graph.nodes:
        if node.target in _SCATTERS:
            if node.args[0].target is aten.full.default and len(node.args[0].users) == 1:
                node.target = _SCATTERS[node.target]
        elif node.target in _IN_PLACE:
            if not _is_dead_after(node.args[0], node) and node.target in _COMMUTE and not node.kwargs:
                node.args = (node.args[1], node.args[0])
            if _is_dead_after(node.args[0], node):
                node.target = _IN_PLACE[node.target]


def _is_dead_after(operand: Any, user: fx.Node) -> bool:
    """Whether only this user needs the operand, whose storage is its own and as large as the result's."""
    if not isinstance(operand, fx.Node) or operand.target not in _FRESH or len(operand.users) != 1:
        return False
    given, made = operand.meta["val"], user.meta["val"]
    alike = given.shape == made.shape and given.stride() == made.stride() and given.dtype == made.dtype
    return alike and list(user.args).count(operand) == 1
