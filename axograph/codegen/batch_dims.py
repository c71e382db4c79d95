"""Which dim of each input carries the batch: as the user states it, and inferred where nothing is stated."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from axograph.capture.program import tensor_text
from axograph.capture.structure import Structure
from axograph.errors import InputError


def batch_dims(
    stated: Mapping[str, int | None], model: nn.Module, tensors: Sequence[torch.Tensor], structure: Structure
) -> dict[int, int | None]:
    """The dim of each input tensor that carries the batch, None where none does.

    `stated` names inputs by their parameter of the model's `forward`, or by their position. Without it, the batch is
    dim 0 of the first input, and of all inputs of that size. Raises `InputError` for a name or dim that there is not.
    """
    told = _told(stated, model, tensors, structure)
    sizes = [tensors[i].shape[dim] for i, dim in told.items() if dim is not None]
    sizes += [tensor.shape[0] for i, tensor in enumerate(tensors) if tensor.dim() and i not in told]
    found: dict[int, int | None] = {}
    for i, tensor in enumerate(tensors):
        has_it = bool(sizes) and tensor.dim() > 0 and tensor.shape[0] == sizes[0]
        found[i] = told.get(i, 0 if has_it else None)
    return found


def _told(
    stated: Mapping[str, int | None], model: nn.Module, tensors: Sequence[torch.Tensor], structure: Structure
) -> dict[int, int | None]:
    """What is stated, by the index of the tensor. An optional input that this call leaves out is passed over."""
    parameters = inspect.signature(model.forward).parameters
    names = [_names(path, list(parameters)) for path in structure.paths()]
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    told: dict[int, int | None] = {}
    for name, dim in stated.items():
        places = [i for i, aliases in enumerate(names) if name in aliases]
        if not places and name.partition(".")[0] not in parameters and not open_ended:
            raise _unknown(name, stated, [aliases[-1] for aliases in names])
        for i in places:
            if dim is not None and not -tensors[i].dim() <= dim < tensors[i].dim():
                raise _no_such_dim(name, stated, tensors[i])
            told[i] = None if dim is None else dim % tensors[i].dim()
    return told


def _names(path: str, parameters: Sequence[str]) -> tuple[str, ...]:
    """All names of the tensor at a path of (positional, keyword) inputs: `0.1.mask` is `1.mask`, and `y.mask`."""
    kind, _, name = path.partition(".")
    position, dot, rest = name.partition(".")
    if kind == "0" and position.isdigit() and int(position) < len(parameters):
        return name, f"{parameters[int(position)]}{dot}{rest}"
    return (name,)


def _unknown(name: str, stated: Mapping[str, int | None], names: Sequence[str]) -> InputError:
    return InputError(
        f"batch_dims names an input that there is not: {name!r}",
        asked=f"batch_dims={dict(stated)!r}",
        given=f"the inputs {', '.join(names)}",
        rule="each name is a parameter of the model's forward, or the position, of a tensor in the call",
        remedy="correct the name, or leave batch_dims out: the batch is dim 0 of the first input by default",
    )


def _no_such_dim(name: str, stated: Mapping[str, int | None], tensor: torch.Tensor) -> InputError:
    return InputError(
        f"batch_dims names a dim that {name!r} has not",
        asked=f"batch_dims={dict(stated)!r}",
        given=f"{name}: {tensor_text(tensor)}",
        rule="the dim that carries the batch is one of the tensor's",
        remedy="correct the dim, or None for an input without a batch",
    )
