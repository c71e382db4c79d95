"""Special methods of a model's type, `model[0]` and `len(model)`: Python looks them up on types, not on instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

_NEVER = {"__class_getitem__", "__copy__", "__deepcopy__", "__del__", "__getnewargs__", "__getnewargs_ex__"}
"""Those that make, copy or end the model itself."""


def with_special_methods(base: type, kind: type[nn.Module]) -> type:
    """A subclass of `base` that has the special methods of a type of models, or `base` where there are none.

    They are called on the instance's `_wrapped`; what returns that (`__iadd__`, `__enter__`) returns the instance.
    """
    found = {name: _forwarded(name) for name in _special_names(kind) if not hasattr(base, name)}
    if not found:
        return base
    return type(base.__name__, (base,), {"__module__": base.__module__, "__doc__": base.__doc__, **found})


def _special_names(kind: type[nn.Module]) -> list[str]:
    """The special methods that a type has beyond those of every module."""
    names = {name for cls in kind.__mro__ for name, value in vars(cls).items() if callable(value)}
    special = {name for name in names if name.startswith("__") and name.endswith("__")}
    return sorted(name for name in special - _NEVER if not hasattr(nn.Module, name))


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = self._wrapped
        result = getattr(model, name)(*args, **kwargs)
        return self if result is model else result

    method.__name__ = name
    return method
