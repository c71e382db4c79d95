"""The listing: a program as text that a reader can check by eye."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from axograph.capture.listing import listing
from axograph.capture.program import FACTS, Facts, note
from axograph.capture.trace import capture
from axograph.cost_model.protocol import Collective
from axograph.placement import Placement


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6, bias=False)

    def forward(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        y = self.up(x)
        return y.max(-1)


FORWARD = """\
parameter_up_weight: f32[6, 4] = input parameter up.weight
user_0: f32[2, 4] = input user 0
# forward up (test_listing.py:LINE, y = self.up(x))
t: f32[4, 6] = aten.t(parameter_up_weight)
mm: f32[2, 6] = aten.mm(user_0, t)
# forward (test_listing.py:LINE, return y.max(-1))
max_1: (f32[2]; i64[2]) = aten.max.dim(mm, -1)
getitem: f32[2] = max_1[0]
getitem_1: i64[2] = max_1[1]
detach: f32[2] = aten.detach(getitem)
detach_1: i64[2] = aten.detach(getitem_1)
return detach -> user 0
return detach_1 -> user 1
"""


def without_lines(text: str) -> str:
    return re.sub(r"(test_listing\.py:)\d+", r"\1LINE", text)


def test_a_captured_program_prints_its_inputs_operators_and_results() -> None:
    with torch.no_grad():
        program = capture(Small(), (torch.zeros(2, 4),))
    assert without_lines(listing(program)) == FORWARD


def test_placements_stand_beside_local_shapes_and_collectives_tell_what_they_move() -> None:
    with torch.no_grad():
        program = capture(Small(), (torch.zeros(2, 4),))
    by_name = {node.name: node for node in program.graph.nodes}
    note(by_name["t"], placements=(Placement.parse("f32[8/y, 6]"),))
    note(by_name["mm"], placements=(Placement.parse("f32[2, 6] partial(y)"),), reason="2 -> 4")
    note(by_name["user_0"], placements=(Placement.parse("f32[2, 4]"),))
    moved = Collective(kind="all_reduce", axes=("y",), size_bytes=48.0)
    by_name["getitem"].meta[FACTS] = replace(Facts(), collective=moved, reason="here")
    lines = {line.partition(":")[0]: line for line in listing(program).splitlines()}
    assert lines["t"].startswith("t: f32[8/y, 6] -> f32[4, 6] = ")
    assert lines["mm"] == "mm: f32[2, 6] partial(y) = aten.mm(user_0, t)  # 2 -> 4"
    assert lines["user_0"] == "user_0: f32[2, 4] = input user 0"
    assert lines["getitem"].endswith("  # all_reduce over y, 48 bytes; here")


def test_a_split_program_prints_both_halves() -> None:
    with torch.no_grad():
        half = capture(Small(), (torch.zeros(2, 4),))
    text = listing(replace(half, backward=half))
    assert without_lines(text) == f"# forward\n{FORWARD}# backward\n{FORWARD}"
