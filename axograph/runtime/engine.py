"""What runs a compiled program: on one rank, on the virtual grid, or on real process groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import fx, nn

from axograph.capture.program import Program
from axograph.grid import Grid
from axograph.placement import Placement
from axograph.runtime.boxed import boxed
from axograph.runtime.inductor import Inductor

Once = Callable[[Callable[[], Any]], Any]
"""Makes something on the first rank and returns it on every rank; what fails there, fails on every rank."""

Runner = Callable[[list[Any]], Sequence[Any]]
"""Half of a program: the values of its placeholders in, its results out. It empties the list that it is given."""


class Engine(Protocol):
    """Brings tensors of the user to the ranks and back, and runs programs on them."""

    @property
    def grid(self) -> Grid:
        """The grid that it runs on."""
        ...

    def take_over(self, model: nn.Module) -> None:
        """Make the model's parameters the engine's own, before anything is compiled."""
        ...

    def adopt(self, model: nn.Module, placements: Mapping[str, Placement]) -> None:
        """Store the model's parameters at these placements, in their places and under their names."""
        ...

    def loadable(self, model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """A state dict of full or stored tensors, with every tensor as the model stores it."""
        ...

    def agree(self, program: Program, inputs: Sequence[torch.Tensor]) -> None:
        """Raise `AgreementError` on every rank unless all have the same program and inputs."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Entered while a program is compiled: an error on one rank is then raised on all."""
        ...

    @property
    def once(self) -> Once | None:
        """How ranks share what one of them makes while they compile; None where one process runs all ranks."""
        ...

    def bind(self, module: fx.GraphModule) -> Runner:
        """Make a graph runnable."""
        ...

    def place(self, tensor: torch.Tensor, placement: Placement) -> Any:
        """What ranks hold of a global tensor (or of a parameter as `adopt` stored it)."""
        ...

    def coordinate(self, axis: str) -> Any:
        """The position along an axis, a scalar i64."""
        ...

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that each process made, on all of them as the first has it."""
        ...

    def returned(self, value: Any, placement: Placement) -> torch.Tensor:
        """The user's tensor of a result at this placement."""
        ...

    def gradient(self, value: Any, placement: Placement, of: torch.Tensor) -> torch.Tensor:
        """The gradient of a parameter or input, of the same kind as that."""
        ...


class OneRank:
    """The grid of a single rank: local tensors are global ones."""

    def __init__(self, inductor: Inductor | None = None) -> None:
        self.grid = Grid(1, 1, 1, 1)
        self.inductor = inductor

    def take_over(self, model: nn.Module) -> None:
        """Nothing to do."""

    def adopt(self, model: nn.Module, placements: Mapping[str, Placement]) -> None:
        """Nothing to do."""

    def loadable(self, model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state itself."""
        return state

    def agree(self, program: Program, inputs: Sequence[torch.Tensor]) -> None:
        """Nothing to do."""

    def together(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    @property
    def once(self) -> None:
        """There is one process."""

    def bind(self, module: fx.GraphModule) -> Runner:
        """Call the generated code."""
        return boxed(module.graph if self.inductor is None else self.inductor(module.graph))

    def place(self, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def coordinate(self, axis: str) -> torch.Tensor:
        """Always zero."""
        return torch.zeros((), dtype=torch.int64)

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def returned(self, value: torch.Tensor, placement: Placement) -> torch.Tensor:
        """The tensor itself."""
        return value

    def gradient(self, value: torch.Tensor, placement: Placement, of: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return value
