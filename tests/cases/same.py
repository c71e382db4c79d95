"""The one check of these tests: on each grid, a model does what it does in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import axograph
from axograph.capture.structure import Structure
from axograph.codegen import compiler
from axograph.codegen.module import ParallelModule
from axograph.torch_private import tree_flatten

Grid = tuple[int, int, int, int]
Build = Callable[[], nn.Module]
Loss = Callable[[Any], torch.Tensor]

X2, X3, X4, Y2, Y3, Y4 = (2, 1, 1, 1), (3, 1, 1, 1), (4, 1, 1, 1), (1, 2, 1, 1), (1, 3, 1, 1), (1, 4, 1, 1)
Z2, Z4, DATA2, DATA4 = (1, 1, 2, 1), (1, 1, 4, 1), (1, 1, 1, 2), (1, 1, 1, 4)
XY, XZ, YZ, X_DATA, Z_DATA, XYZ = (2, 2, 1, 1), (2, 1, 2, 1), (1, 2, 2, 1), (2, 1, 1, 2), (1, 1, 2, 2), (2, 2, 2, 1)


def made(build: Build, seed: int = 0) -> nn.Module:
    """A model with the weights that this seed gives."""
    torch.manual_seed(seed)
    return build()


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    """Normal random numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ids(*shape: int, below: int) -> torch.Tensor:
    """Token ids that come in no order, and repeat where there are more than `below`."""
    return (torch.arange(int(torch.tensor(shape).prod())) * 7 % below).view(shape)


def mean_square(outputs: Any) -> torch.Tensor:
    """A loss that every floating-point output goes into."""
    tensors = [t for t in tree_flatten(outputs)[0] if isinstance(t, torch.Tensor)]
    parts = [t.abs().pow(2).mean() for t in tensors if t.is_floating_point() or t.is_complex()]
    return torch.stack([part.double() for part in parts]).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that a user sees of a model that is called, differentiated, and trained for some steps."""

    outputs: Any
    loss: torch.Tensor | None
    gradients: Mapping[str, torch.Tensor | None]
    input_gradients: Sequence[torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor]
    trained: Mapping[str, torch.Tensor]
    state: Sequence[str]
    trainable: Sequence[str]


def see(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Loss, steps: int) -> Seen:
    """Run a model; its floating-point inputs take gradients."""
    inputs, structure = tree_flatten((tuple(args), dict(kwargs)))
    inputs = [_leaf(value) for value in inputs]
    args, kwargs = structure.unflatten(inputs)
    outputs = model(*args, **kwargs)
    total = None
    if any(t.requires_grad for t in tree_flatten(outputs)[0] if isinstance(t, torch.Tensor)):
        total = loss(outputs)
        total.backward()
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    taken = [value.grad for value in inputs if isinstance(value, torch.Tensor)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.1) if steps else None
    for _ in range(steps):
        assert optimizer is not None
        optimizer.zero_grad()
        loss(model(*args, **kwargs)).backward()
        optimizer.step()
    return Seen(
        outputs=outputs,
        loss=total,
        gradients=gradients,
        input_gradients=taken,
        buffers=buffers,
        trained={name: p.detach().clone() for name, p in model.named_parameters()},
        state=list(model.state_dict()),
        trainable=[name for name, p in model.named_parameters() if p.requires_grad],
    )


def _leaf(value: Any) -> Any:
    """A tensor of the caller as an input of its own, with the same strides."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    return copy.requires_grad_(value.is_floating_point())


def assert_equal(ours: Any, theirs: Any, what: str, tolerance: float = 1e-9) -> None:
    """Same structure, types and values."""
    found, structure = Structure.flatten(ours)
    wanted, other = Structure.flatten(theirs)
    assert structure.key == other.key, what
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def assert_tells_apart(right: torch.Tensor, wrong: torch.Tensor) -> None:
    """These numbers would show the usual mistake."""
    assert right.shape != wrong.shape or (right - wrong).abs().max() > 1e-4


def assert_same(
    build: Build,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    grids: Sequence[Grid],
    loss: Loss = mean_square,
    steps: int = 0,
    train: bool = True,
    tolerance: float = 1e-9,
    may_refuse: str = "",
) -> list[ParallelModule]:
    """Compare the model with itself on each grid; the parallel modules.

    With `may_refuse`, a grid may be refused by a `ValueError` whose text contains that, before anything runs.
    """
    theirs = see(made(build).train(train), args, kwargs or {}, loss, steps)
    modules = []
    with captured_once():
        for grid in grids:
            module = axograph.parallelize(made(build).train(train), grid=grid)
            try:
                ours = see(module, args, kwargs or {}, loss, steps)
                for what in Seen.__slots__:
                    assert_equal(getattr(ours, what), getattr(theirs, what), what, tolerance)
            except Exception as error:
                refused = isinstance(error, axograph.AxographError) and may_refuse and may_refuse in str(error)
                if refused and not module._compiled:
                    continue
                error.add_note(f"on grid {grid}")
                raise
            modules.append(module)
    return modules


@contextlib.contextmanager
def captured_once(known: dict[Any, Any] | None = None) -> Iterator[None]:
    """Programs do not depend on the grid: calls of one kind of one model share what is captured.

    `known` keeps it for more than one such context.
    """
    capture = compiler.capture
    known = {} if known is None else known

    def once(model: nn.Module, args: Any, kwargs: Any, **options: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs))
        shapes = [(t.shape, t.dtype, t.requires_grad) if isinstance(t, torch.Tensor) else t for t in leaves]
        modes = [module.training for module in model.modules()]
        key = repr((structure, shapes, modes, torch.is_grad_enabled(), sorted(options.items(), key=str)))
        if key not in known:
            known[key] = capture(model, args, kwargs, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "capture", once)
        yield
