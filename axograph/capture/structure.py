"""Taking nested values apart into tensors, and putting them together again.

Registered containers (dicts, tuples, named tuples, Hugging Face outputs) go through pytree; any other object that
holds tensors in its attributes (a dataclass, a key-value cache) is copied around them.
"""

from __future__ import annotations

import copy
import enum
import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from axograph.torch_private import tree_flatten, tree_unflatten

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size, enum.Enum)


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of one tensor."""

    index: int


@dataclass(frozen=True, slots=True)
class _Constant:
    """A leaf that is not a tensor; it is part of the program."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Object:
    """An object that is no registered container, and its attributes."""

    value: Any
    attributes: tuple[tuple[str, Structure], ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """A nested value with its tensors taken out."""

    container: Any
    leaves: tuple[_Slot | _Constant | _Object, ...]

    @classmethod
    def flatten(cls, value: Any) -> tuple[list[torch.Tensor], Structure]:
        """The tensors of a value, in order, and the structure that they came from."""
        tensors: list[torch.Tensor] = []
        return tensors, cls._of(value, tensors, ())

    @classmethod
    def _of(cls, value: Any, tensors: list[torch.Tensor], inside: tuple[int, ...]) -> Structure:
        leaves, container = tree_flatten(value)
        return cls(container, tuple(_leaf(leaf, tensors, inside) for leaf in leaves))

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """The value again, with these tensors in the places of the old ones."""
        return tree_unflatten([_rebuilt(leaf, tensors) for leaf in self.leaves], self.container)

    @property
    def key(self) -> str:
        """A text that is equal for structures that differ in their tensors alone."""
        return f"{self.container}({', '.join(map(_leaf_key, self.leaves))})"

    @property
    def count(self) -> int:
        """The number of tensors."""
        return _count(self)

    def paths(self) -> list[str]:
        """A short name for each tensor, by its key, attribute or position, such as `logits` or `0`."""
        names: dict[int, str] = {}
        numbered = self.unflatten([_Slot(i) for i in range(self.count)])
        _name(numbered, "", names)
        return [names.get(i, str(i)) for i in range(self.count)]


def _leaf(value: Any, tensors: list[torch.Tensor], inside: tuple[int, ...]) -> _Slot | _Constant | _Object:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Slot(len(tensors) - 1)
    if isinstance(value, _PLAIN) or callable(value) or id(value) in inside or not hasattr(value, "__dict__"):
        return _Constant(value)
    found = len(tensors)
    attributes = tuple(
        (name, Structure._of(attribute, tensors, (*inside, id(value)))) for name, attribute in vars(value).items()
    )
    return _Object(copy.copy(value), attributes) if len(tensors) > found else _Constant(value)


def _rebuilt(leaf: _Slot | _Constant | _Object, tensors: Sequence[Any]) -> Any:
    if isinstance(leaf, _Slot):
        return tensors[leaf.index]
    if isinstance(leaf, _Constant):
        return leaf.value
    value = copy.copy(leaf.value)
    for name, attribute in leaf.attributes:
        object.__setattr__(value, name, attribute.unflatten(tensors))
    return value


def _leaf_key(leaf: _Slot | _Constant | _Object) -> str:
    if isinstance(leaf, _Slot):
        return "*"
    if isinstance(leaf, _Constant):
        return _constant_key(leaf.value)
    return f"{type(leaf.value).__qualname__}({', '.join(f'{n}={s.key}' for n, s in leaf.attributes)})"


def _constant_key(value: Any) -> str:
    """A text that tells constants apart by what they hold. An object of unknown contents is equal to itself alone."""
    if isinstance(value, _PLAIN) or callable(value):
        return repr(value)
    try:
        return f"{type(value).__qualname__}({hashlib.sha256(pickle.dumps(value)).hexdigest()})"
    except Exception:  # whatever keeps it from being pickled
        return f"{type(value).__qualname__}({id(value)})"


def _count(structure: Structure) -> int:
    count = 0
    for leaf in structure.leaves:
        if isinstance(leaf, _Slot):
            count += 1
        elif isinstance(leaf, _Object):
            count += sum(_count(attribute) for _, attribute in leaf.attributes)
    return count


def _name(value: Any, prefix: str, names: dict[int, str]) -> None:
    if isinstance(value, _Slot):
        names[value.index] = prefix or "0"
    elif isinstance(value, dict):
        for key, item in value.items():
            _name(item, f"{prefix}.{key}".lstrip("."), names)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _name(item, f"{prefix}.{position}".lstrip("."), names)
    elif hasattr(value, "__dict__"):
        for key, item in vars(value).items():
            _name(item, f"{prefix}.{key}".lstrip("."), names)
