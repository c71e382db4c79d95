"""A stand-in for Inductor that interprets graphs: a C++ compiler takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def interpreted(graph: fx.Graph, inputs: Sequence[Any], mode: Any) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """What `axograph.torch_private.compile_graph` returns, but that nothing is compiled."""
    interpreter = fx.Interpreter(fx.GraphModule({}, graph))

    def run(values: list[Any]) -> Any:
        given = list(values)
        values.clear()
        return interpreter.run(*given)

    with mode:
        return run, list(interpreter.run(*inputs))
