"""A compiled program with its engine: tensors of the user in, tensors of the user out, gradients through autograd."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from axograph.capture.program import Input, Output, Program
from axograph.errors import UnsupportedError
from axograph.passes.dataflow import may_be_view
from axograph.placement import Placement
from axograph.runtime.engine import Engine, Runner
from axograph.torch_private import keeps_graph


@dataclass(slots=True)
class Compiled:
    """A split program, bound to an engine and to the model whose parameters it reads."""

    program: Program
    engine: Engine
    model: nn.Module
    widen: Callable[[], Compiled]
    """Compiles the same call with gradients of all outputs, for a loss that uses more of them than expected."""
    forward: Runner = field(init=False)
    backward: Runner | None = field(init=False)
    shown: frozenset[int] = field(init=False)
    """Which saved values the user also holds, as outputs or buffers: they might be changed in place before backward."""
    names: list[str] = field(init=False)
    """The parameters that the forward half reads, in its order."""
    homes: list[tuple[dict[str, Any], str]] = field(init=False)
    """For each of them, the table of the module that holds it, and its name there."""
    constants: dict[str, Any] = field(init=False)
    coordinates: dict[str, Any] = field(init=False)
    drawn: torch.device | None = field(init=False)
    """Where the program draws random numbers; None where it draws none."""
    changed: frozenset[str | int] = field(init=False)
    """The buffers that a call changes: it works on copies, as backward may need them as they were."""

    def __post_init__(self) -> None:
        _refuse_mutated_leaves(self.program)
        self.forward = self.engine.bind(self.program.graph_module)
        self.names = [str(i.target) for i in self.program.inputs if i.kind == "parameter"]
        owners = [name.rpartition(".")[::2] for name in self.names]
        self.homes = [(self.model.get_submodule(path)._parameters, name) for path, name in owners]
        self.drawn = _drawn(self.program)
        self.changed = frozenset(o.target for o in self.program.outputs if o.kind == "buffer")
        behind = self.program.backward
        self.backward = self.engine.bind(behind.graph_module) if behind is not None else None
        self.shown = _shown(self.program)
        declared = [*self.program.inputs, *(behind.inputs if behind is not None else ())]
        self.constants = {
            str(i.target): self.engine.place(self.program.constants[str(i.target)], _lies(i))
            for i in declared
            if i.kind == "constant"
        }
        self.coordinates = {
            str(i.target): self.engine.coordinate(str(i.target)) for i in declared if i.kind == "coordinate"
        }

    def __call__(self, user: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The model's output tensors for its input tensors, in the order of the output structure."""
        tensors = [*self.parameters(), *self.keys(), *user]
        if self.backward is None:
            with torch.no_grad():
                return self.run_forward(tensors)[0]
        outputs: tuple[torch.Tensor, ...] = _Run.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return list(outputs)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters that the forward half reads, in its order."""
        return [table[name] for table, name in self.homes]

    def keys(self) -> list[torch.Tensor]:
        """The key of a new call's random numbers, where there are some: a draw of torch's generator, on rank 0."""
        if self.drawn is None:
            return []
        key = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device="cpu")
        return [self.engine.shared(key.to(self.drawn))]

    def run_forward(self, tensors: Sequence[torch.Tensor], update: bool = True) -> tuple[list[torch.Tensor], list[Any]]:
        """The output tensors and what is saved for backward; buffers are updated unless told otherwise."""
        values = self._values(self.program.inputs, tensors)
        outputs: dict[int, torch.Tensor] = {}
        saved: list[Any] = []
        for value, declared in zip(self.forward(values), self.program.outputs, strict=True):
            if declared.kind == "saved":
                saved.append(value)
            elif declared.kind == "user":
                outputs[int(declared.target)] = self.engine.returned(value, _lies(declared))
            elif update:
                self._update(declared, self.engine.returned(value, _lies(declared)), tensors)
        return [outputs[i] for i in range(len(outputs))], saved

    def _update(self, declared: Output, value: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Write what the model changed in place: a buffer, or one of its inputs."""
        if declared.kind == "buffer":
            self.model.get_buffer(str(declared.target)).copy_(value)
        else:
            tensors[len(tensors) - self._user_count() + int(declared.target)].copy_(value)

    def _user_count(self) -> int:
        return self.program.input_structure.count

    def run_backward(
        self,
        tensors: Sequence[torch.Tensor],
        saved: list[Any],
        tangents: Sequence[torch.Tensor | None],
        asked: Collection[int],
    ) -> list[torch.Tensor | None]:
        """The gradient of each of the tensors; None where it has none, or no loss of the outputs `asked` reaches it."""
        behind = self.program.backward
        assert behind is not None
        assert self.backward is not None
        values = self._values(behind.inputs, tensors, saved, tangents)
        by_target = {target: position for position, target in enumerate(self._targets(len(tensors)))}
        gradients: list[torch.Tensor | None] = [None] * len(tensors)
        for value, declared in zip(self.backward(values), behind.outputs, strict=True):
            position = by_target.get(declared.target)
            reached = not declared.through or not declared.through.isdisjoint(asked)
            if value is not None and position is not None and reached:
                gradients[position] = self.engine.gradient(value, _lies(declared), tensors[position])
        return gradients

    def _targets(self, count: int) -> list[str | int]:
        """What each tensor of a call is: a parameter's name, the key of its random numbers, or a user input's index."""
        ahead = [*self.names, _KEY] if self.drawn is not None else self.names
        return [*ahead, *range(count - len(ahead))]

    def _values(
        self,
        inputs: Sequence[Input],
        tensors: Sequence[torch.Tensor],
        saved: list[Any] | None = None,
        tangents: Sequence[torch.Tensor | None] = (),
    ) -> list[Any]:
        """The values of the placeholders. Saved ones are taken out of their list: their last holder is the result."""
        given = dict(zip(self._targets(len(tensors)), tensors, strict=True))
        values: list[Any] = []
        for declared in inputs:
            if declared.kind == "saved":
                assert saved is not None
                values.append(saved[int(declared.target)])
                saved[int(declared.target)] = None
            elif declared.kind == "constant":
                values.append(self.constants[str(declared.target)])
            elif declared.kind == "coordinate":
                values.append(self.coordinates[str(declared.target)])
            else:
                tensor: torch.Tensor | None = None
                if declared.kind == "random":
                    tensor = given[_KEY]
                elif declared.kind in ("parameter", "user"):
                    tensor = given[declared.target]
                elif declared.kind == "buffer":
                    tensor = self.model.get_buffer(str(declared.target))
                    if declared.target in self.changed:
                        tensor = tensor.clone()
                elif declared.kind == "tangent":
                    tensor = tangents[int(declared.target)]
                assert tensor is not None
                values.append(self.engine.place(tensor.detach(), _lies(declared)))
        return values


_KEY = "random key"
"""Stands for the key of random numbers among the names of parameters."""


def _shown(program: Program) -> frozenset[int]:
    """The saved values that are buffers or outputs of the model, or share their storage with one."""

    def base(node: fx.Node) -> fx.Node:
        while may_be_view(node):
            node = node.all_input_nodes[0]
        return node

    pairs = list(zip(program.results(), program.outputs, strict=True))
    outputs = {base(node) for node, declared in pairs if node is not None and declared.kind == "user"}
    outputs |= {n for n, i in zip(program.placeholders(), program.inputs, strict=True) if i.kind == "buffer"}
    saved = [(node, declared) for node, declared in pairs if declared.kind == "saved"]
    return frozenset(int(declared.target) for node, declared in saved if node is not None and base(node) in outputs)


def _drawn(program: Program) -> torch.device | None:
    """The device of the key, in whichever half it is used."""
    for half in (program, program.backward):
        if half is not None:
            for node, declared in zip(half.placeholders(), half.inputs, strict=True):
                if declared.kind == "random":
                    device: torch.device = node.meta["val"].device
                    return device
    return None


def _lies(declared: Input | Output) -> Placement:
    assert declared.placement is not None
    return declared.placement


def _refuse_mutated_leaves(program: Program) -> None:
    names = program.input_structure.paths()
    for declared in program.outputs:
        if declared.kind == "mutation" and program.backward is not None:
            raise UnsupportedError(
                "the model changes one of its inputs in place while gradients are taken",
                asked=f"input {names[int(declared.target)].partition('.')[2]} changed in place",
                given="a call with gradients enabled",
                rule="an input may be changed in place only where no gradient goes through it",
                remedy="clone the input in the model's forward before changing it",
            )


class _Run(torch.autograd.Function):
    """The two halves as one node of autograd. Gradients are complete when `backward()` returns."""

    @staticmethod
    def forward(ctx: Any, compiled: Compiled, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.buffers = {str(name): compiled.model.get_buffer(str(name)).clone() for name in compiled.changed}
        outputs, saved = compiled.run_forward(tensors)
        outputs = _own(outputs, [*tensors, *saved])
        ctx.compiled = compiled
        ctx.count = len(tensors)
        shown = compiled.shown
        ctx.save_for_backward(*tensors, *(value for i, value in enumerate(saved) if i in shown))
        ctx.saved = {i: value for i, value in enumerate(saved) if i not in shown}
        ctx.set_materialize_grads(False)
        ctx.outputs = [(t.shape, t.dtype, t.device) for t in outputs]
        ctx.mark_non_differentiable(*(t for t in outputs if not (t.is_floating_point() or t.is_complex())))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise _second_derivative()
        compiled: Compiled = ctx.compiled
        tensors, saved = _taken(ctx)
        asked = {i for i, tangent in enumerate(tangents) if tangent is not None}
        if not asked <= set(compiled.program.differentiable):
            compiled, saved = _widened(compiled, tensors, ctx.buffers)
        complete = list(tangents)
        for i in set(compiled.program.differentiable) - asked:
            shape, dtype, device = ctx.outputs[i]
            complete[i] = torch.zeros(shape, dtype=dtype, device=device)
        return (None, *compiled.run_backward(tensors, saved, complete, asked))


def _taken(ctx: Any) -> tuple[Sequence[torch.Tensor], list[Any]]:
    """The tensors of the call and the saved values; unless the graph is kept, these are now the caller's alone."""
    kept = ctx.saved_tensors
    if ctx.saved is None:
        raise RuntimeError("backward ran a second time through a call whose saved values are freed; "
                           "pass retain_graph=True to the first")  # fmt: skip
    values = dict(ctx.saved)
    if not keeps_graph():
        ctx.saved = None
    values |= zip(sorted(ctx.compiled.shown), kept[ctx.count :], strict=True)
    return kept[: ctx.count], [values[i] for i in range(len(values))]


def _own(outputs: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs as tensors that the user may change in place; those that are needed for backward stay protected."""
    plain = (torch.Tensor, nn.Parameter)
    needed = {t.untyped_storage().data_ptr() for t in kept if type(t) in plain}
    return [
        torch.ops.aten._unsafe_view.default(t, list(t.shape))
        if type(t) is torch.Tensor and t.untyped_storage().data_ptr() not in needed
        else t
        for t in outputs
    ]


def _second_derivative() -> UnsupportedError:
    return UnsupportedError(
        "the gradients of a parallel module cannot be differentiated again",
        asked="backward(create_graph=True), or autograd.grad with it",
        given="a program whose backward half has no derivative of its own",
        rule="first derivatives only",
        remedy="create_graph=False; retain_graph=True where only the same gradients are wanted again",
    )


def _widened(
    compiled: Compiled, tensors: Sequence[torch.Tensor], buffers: dict[str, torch.Tensor]
) -> tuple[Compiled, list[Any]]:
    """The program with gradients of all outputs, and what its forward saves, run again on the same inputs."""
    wide = compiled.widen()
    after = {name: compiled.model.get_buffer(name).clone() for name in buffers}
    for name, before in buffers.items():
        compiled.model.get_buffer(name).copy_(before)
    try:
        return wide, wide.run_forward(tensors, update=False)[1]
    finally:
        for name, value in after.items():
            compiled.model.get_buffer(name).copy_(value)
