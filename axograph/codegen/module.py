"""The module that the user gets: called like the model, with the model's own names, running on the whole grid."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from axograph.capture.structure import Structure
from axograph.codegen.compiled import Compiled
from axograph.codegen.compiler import Compiler
from axograph.codegen.special_methods import with_special_methods
from axograph.errors import AxographError
from axograph.passes.scheduling.report import Report, report
from axograph.pipeline import Stages
from axograph.plan import Plan
from axograph.runtime.engine import Engine


class ParallelModule(nn.Module):
    """A model on a grid of ranks.

    It takes over the model that it was made from: parameters and buffers stay under their names (on process groups
    as DTensors), and attributes and methods of the model are found as before, special methods of its type included
    (`pm[0]`, `len(pm)`). Each new kind of call (shapes, dtypes, train or eval mode, grad mode) is compiled when it
    first occurs, and kept.
    """

    def __new__(cls, model: nn.Module, *_: Any, **__: Any) -> ParallelModule:
        """An instance with the special methods of the model's type."""
        return _bare(cls, type(model))

    def __init__(self, model: nn.Module, compiler: Compiler, engine: Engine) -> None:
        super().__init__()
        engine.take_over(model)
        self.__dict__["_parameters"] = model._parameters
        self.__dict__["_buffers"] = model._buffers
        self.__dict__["_modules"] = model._modules
        self.__dict__["_non_persistent_buffers_set"] = model._non_persistent_buffers_set
        self.training = model.training
        self._compiler = compiler
        self._engine = engine
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        self._made_of: dict[tuple[Any, ...], list[nn.Module]] = {}
        self._wide: set[tuple[Any, ...]] = set()
        self._stages = Stages()
        self._latest: Compiled | None = None
        self._lock = threading.Lock()
        self.__dict__["_wrapped"] = model  # the last of its own attributes: others are set on the model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_wrapped"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the model. Programs have its plain values as constants, so they are made again."""
        if "_wrapped" not in self.__dict__ or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
            return
        setattr(self._wrapped, name, value)
        if not isinstance(value, torch.Tensor | nn.Module):  # those are read at each call, or in its key
            self._compiled.clear()
            self._made_of.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _bare, (ParallelModule, type(self._wrapped)), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """All but what a copy compiles for itself."""
        fresh: dict[str, Any] = {"_compiled": {}, "_made_of": {}, "_wide": set(), "_stages": Stages(), "_latest": None}
        return {name: value for name, value in self.__dict__.items() if name != "_lock"} | fresh

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"_lock": threading.Lock()})  # type: ignore[no-untyped-call]

    @property
    def plan(self) -> Plan:
        """What the sharding pass decided for the latest call."""
        if self._latest is None or self._latest.program.plan is None:
            raise _nothing_compiled("pm.plan")
        return self._latest.program.plan

    @property
    def stages(self) -> Stages:
        """The program after each pass of the latest compilation, by the pass's name; kept when a pass fails."""
        return self._stages

    def report(self) -> Report:
        """What a step of the latest call takes under the cost model, and why which communication stays exposed."""
        assert self.plan is not None
        assert self._latest is not None
        return report(self._latest.program, self._compiler.grid, self._compiler.cost_model)

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Write the simulated step as a Chrome trace: a track for computing and one for each channel, in each half."""
        self.report().write_trace(path)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own output, for the model's own inputs."""
        tensors, structure = Structure.flatten((args, kwargs))
        compiled = self.compile_for(tensors, structure)
        outputs = compiled(tensors)
        return compiled.program.output_structure.unflatten(outputs)

    def compile_for(self, tensors: Sequence[torch.Tensor], structure: Structure) -> Compiled:
        """The compiled program for inputs of this kind, made on first use."""
        key = self._key(tensors, structure)
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key) or self._compile(key, tensors, structure)
        self._latest = compiled
        return compiled

    def _compile(self, key: tuple[Any, ...], tensors: Sequence[torch.Tensor], structure: Structure) -> Compiled:
        self._stages = Stages()
        with self._engine.together():
            program = self._compiler.compile(self._wrapped, tensors, structure, key in self._wide, self._stages)
        self._engine.agree(program, tensors)
        assert program.plan is not None
        self._engine.adopt(self._wrapped, program.plan.parameters)
        self._compiler.stored.update(program.plan.parameters)

        shapes = [torch.empty_like(t, device="meta").requires_grad_(t.requires_grad) for t in tensors]

        def widen() -> Compiled:
            self._wide.add(key)
            with torch.enable_grad():
                return self._compile(key, shapes, structure)

        compiled = Compiled(program, self._engine, self._wrapped, widen)
        self._compiled[key] = compiled
        self._made_of[key] = list(self._wrapped.modules())  # kept, so that no other module gets the identity of one
        return compiled

    def _key(self, tensors: Sequence[torch.Tensor], structure: Structure) -> tuple[Any, ...]:
        """What a program is specialised to."""
        modules = list(self._wrapped.modules())
        parameters = [p for module in modules for p in module._parameters.values() if p is not None]
        return (
            structure.key,
            tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in tensors),
            tuple([(id(module), module.training) for module in modules]),
            tuple([(p.shape, p.dtype, p.device, p.requires_grad) for p in parameters]),
            torch.is_grad_enabled(),
            tuple(torch.is_autocast_enabled(d) and torch.get_autocast_dtype(d) for d in ("cpu", "cuda")),
        )

    def train(self, mode: bool = True) -> ParallelModule:
        """Set training mode, or evaluation mode, as on the model."""
        self._wrapped.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's state under its own names; on process groups parameters are DTensors."""
        return self._wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state of this module, or of the original model (full tensors, the same on every rank)."""
        return self._wrapped.load_state_dict(self._engine.loadable(self._wrapped, state_dict), strict, assign)


def _nothing_compiled(asked: str) -> AxographError:
    return AxographError(
        "there is no plan yet",
        asked=asked,
        given="a module that has compiled nothing so far",
        rule="the plan is made at the first call, or from sample_inputs",
        remedy="call the module once, or pass sample_inputs= to parallelize",
    )


def _bare(base: type[ParallelModule], kind: type[nn.Module]) -> ParallelModule:
    """A parallel module without contents, for a model of this type."""
    made: ParallelModule = nn.Module.__new__(with_special_methods(base, kind))
    return made
