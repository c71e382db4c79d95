"""Passes, the runner that applies them, and the stages that it keeps.

A pass is a frozen dataclass; its fields are its options. The runner knows no pass: it times each one, hands the
result to the observers, and keeps every program, also when a later pass fails.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from axograph.capture.listing import listing
from axograph.capture.program import Program


@runtime_checkable
class Pass(Protocol):
    """One step from a valid program to a valid program."""

    @property
    def name(self) -> str:
        """A verb in kebab case, such as "shard" or "split-joint"."""
        ...

    @property
    def preserves_numerics(self) -> bool:
        """Whether outputs and gradients stay the same but for rounding."""
        ...

    def run(self, program: Program) -> Program:
        """The program after this pass; the one given is left as it is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A program as one pass left it."""

    name: str
    """The name of the pass that made it."""
    program: Program
    time_s: float
    """Seconds that the pass took."""

    def __str__(self) -> str:
        return f"# after {self.name}, {self.time_s:.3f} s\n{listing(self.program)}"


@dataclass(slots=True)
class Stages(Mapping[str, Stage]):
    """The stages of one compilation, in order, by name."""

    found: dict[str, Stage] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Stage:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def add(self, stage: Stage) -> None:
        """Keep a stage."""
        self.found[stage.name] = stage

    def __str__(self) -> str:
        return "\n".join(f"{s.name:<12} {len(s.program.graph.nodes):>6} nodes {s.time_s:8.3f} s" for s in self.values())


Observer = Callable[[Stage], None]
"""Called with each stage as it is made: to print it, to check it, to store it."""


def run(program: Program, passes: Sequence[Pass], stages: Stages, observers: Sequence[Observer] = ()) -> Program:
    """Apply the passes in turn. Every program is kept in `stages`; an error of a pass names it in a note."""
    for step in passes:
        start_s = time.perf_counter()
        try:
            with _uncollected():
                program = step.run(program)
        except Exception as error:
            error.add_note(f"in the pass {step.name!r}; the stages before it are kept: {', '.join(stages)}")
            raise
        stage = Stage(name=step.name, program=program, time_s=time.perf_counter() - start_s)
        stages.add(stage)
        for observe in observers:
            observe(stage)
    return program


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python looks for no garbage meanwhile: it would look through all graphs there are, again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
