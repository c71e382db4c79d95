"""`as_strided` without strides: the elements that the model would read, whatever the order of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from axograph.capture.trace import capture
from axograph.errors import UnsupportedError
from axograph.passes.normalize import Normalize

aten = torch.ops.aten


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _put(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x, -x[:2, :2], (2, 2), (6, 1), 7)


READS = [
    lambda x: x.as_strided((6, 4), (1, 6)),  # transposed
    lambda x: x.as_strided((4, 1, 6), (6, 99, 1)),
    lambda x: x.mT.contiguous().as_strided((6, 4), (4, 1)),  # the memory of a transposed copy
    lambda x: x.as_strided((3, 4), (6, 1), 3),  # overlaps nothing, begins later
    lambda x: x.as_strided((5, 3), (2, 1)),  # windows that overlap
    lambda x: x.as_strided((3, 5), (0, 4)),
    _put,
    lambda x: torch.as_strided_scatter(x, -x.mT, (6, 4), (1, 6)),
]


@pytest.mark.parametrize("function", READS)
def test_the_same_elements_are_read_without_strides(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    program = Normalize().run(capture(Function(function), (x,)))
    assert not {node.target for node in program.graph.nodes} & {
        aten.as_strided.default,
        aten.as_strided_scatter.default,
    }
    (found,) = program.graph_module(x)
    assert torch.equal(found, function(x))


def test_memory_beside_the_tensor_is_refused() -> None:
    program = capture(Function(lambda x: x[1:, 2:].as_strided((2, 2), (6, 1))), (torch.ones(4, 6),))
    with pytest.raises(UnsupportedError, match="memory beside its tensor") as refused:
        Normalize().run(program)
    assert "sizes [2, 2], strides [6, 1]" in str(refused.value)
