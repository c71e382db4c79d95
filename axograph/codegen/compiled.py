"""A compiled program with its engine: tensors of the user in, tensors of the user out, gradients through autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from axograph.capture.program import Input, Output, Program
from axograph.errors import UnsupportedError
from axograph.placement import Placement
from axograph.runtime.engine import Engine, Runner


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
    constants: dict[str, Any] = field(init=False)
    coordinates: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        _refuse_mutated_leaves(self.program)
        self.forward = self.engine.bind(self.program.graph_module)
        behind = self.program.backward
        self.backward = self.engine.bind(behind.graph_module) if behind is not None else None
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
        tensors = [*self.parameters(), *user]
        if self.backward is None:
            with torch.no_grad():
                return self.run_forward(tensors)[0]
        outputs: tuple[torch.Tensor, ...] = _Run.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return list(outputs)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters that the forward half reads, in its order."""
        names = [str(i.target) for i in self.program.inputs if i.kind == "parameter"]
        return [self.model.get_parameter(name) for name in names]

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
        self, tensors: Sequence[torch.Tensor], saved: Sequence[Any], tangents: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """The gradient of each of the tensors, None where it has none."""
        behind = self.program.backward
        assert behind is not None and self.backward is not None
        values = self._values(behind.inputs, tensors, saved, tangents)
        by_target = {target: position for position, target in enumerate(self._targets(len(tensors)))}
        gradients: list[torch.Tensor | None] = [None] * len(tensors)
        for value, declared in zip(self.backward(values), behind.outputs, strict=True):
            position = by_target.get(declared.target)
            if value is not None and position is not None:
                gradients[position] = self.engine.gradient(value, _lies(declared), tensors[position])
        return gradients

    def _targets(self, count: int) -> list[str | int]:
        """What each tensor of a call is: a parameter's name, or a user input's index."""
        names: list[str | int] = [str(i.target) for i in self.program.inputs if i.kind == "parameter"]
        return [*names, *range(count - len(names))]

    def _values(
        self,
        inputs: Sequence[Input],
        tensors: Sequence[torch.Tensor],
        saved: Sequence[Any] = (),
        tangents: Sequence[torch.Tensor | None] = (),
    ) -> list[Any]:
        given = dict(zip(self._targets(len(tensors)), tensors, strict=True))
        values: list[Any] = []
        for declared in inputs:
            if declared.kind == "saved":
                values.append(saved[int(declared.target)])
            elif declared.kind == "constant":
                values.append(self.constants[str(declared.target)])
            elif declared.kind == "coordinate":
                values.append(self.coordinates[str(declared.target)])
            else:
                tensor: torch.Tensor | None = None
                if declared.kind in ("parameter", "user"):
                    tensor = given[declared.target]
                elif declared.kind == "buffer":
                    tensor = self.model.get_buffer(str(declared.target))
                elif declared.kind == "tangent":
                    tensor = tangents[int(declared.target)]
                assert tensor is not None
                values.append(self.engine.place(tensor.detach(), _lies(declared)))
        return values


def _lies(declared: Input | Output) -> Placement:
    assert declared.placement is not None
    return declared.placement


def _refuse_mutated_leaves(program: Program) -> None:
    for declared in program.outputs:
        if declared.kind == "mutation" and program.backward is not None:
            raise UnsupportedError(
                "the model changes one of its inputs in place while gradients are taken",
                asked=f"input {program.input_structure.paths()[int(declared.target)]} changed in place",
                given="a call with gradients enabled",
                rule="an input may be changed in place only where no gradient goes through it",
                remedy="clone the input in the model's forward before changing it",
            )


class _Run(torch.autograd.Function):
    """The two halves as one node of autograd. Gradients are complete when `backward()` returns."""

    @staticmethod
    def forward(ctx: Any, compiled: Compiled, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        changed = [declared.target for declared in compiled.program.outputs if declared.kind == "buffer"]
        ctx.buffers = {name: compiled.model.get_buffer(str(name)).clone() for name in changed}
        outputs, saved = compiled.run_forward(tensors)
        ctx.compiled = compiled
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *saved)
        ctx.set_materialize_grads(False)
        ctx.outputs = [(t.shape, t.dtype, t.device) for t in outputs]
        ctx.mark_non_differentiable(*(t for t in outputs if not (t.is_floating_point() or t.is_complex())))
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        compiled: Compiled = ctx.compiled
        kept = ctx.saved_tensors
        tensors, saved = kept[: ctx.count], kept[ctx.count :]
        asked = {i for i, tangent in enumerate(tangents) if tangent is not None}
        if not asked <= set(compiled.program.differentiable):
            compiled, saved = _widened(compiled, tensors, ctx.buffers)
        complete = [
            torch.zeros(shape, dtype=dtype, device=device) if t is None else t
            for t, (shape, dtype, device) in zip(tangents, ctx.outputs, strict=True)
        ]
        return (None, *compiled.run_backward(tensors, saved, complete))


def _widened(
    compiled: Compiled, tensors: Sequence[torch.Tensor], buffers: dict[str, torch.Tensor]
) -> tuple[Compiled, Sequence[Any]]:
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
