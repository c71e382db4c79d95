"""What the emitter of local tensors writes into the graph."""

from __future__ import annotations

from typing import Any

import torch

from axograph.capture import Facts, facts
from axograph.grid import Grid
from axograph.passes.sharding.collectives import LocalEmitter
from axograph.placement import SubDim
from axograph.torch_private import collective_op, fake_tensor_mode, is_fake

aten = torch.ops.aten


def emitter(grid: Grid, *shape: int) -> tuple[LocalEmitter, torch.fx.Node]:
    emit = LocalEmitter(grid)
    with fake_tensor_mode():
        x = emit.placeholder("x", torch.empty(*shape), Facts())
        for axis in grid.cut_axes:
            emit.coordinates[axis] = emit.placeholder(f"coordinate_{axis}", torch.empty((), dtype=torch.int64), Facts())
    return emit, x


def test_an_all_reduce_is_a_start_and_a_wait_and_says_what_it_moves() -> None:
    emit, x = emitter(Grid(2, 1, 1, 4), 3, 5)
    wait = emit.all_reduce(x, ("x", "y", "data"), "sum")
    start = wait.args[0]
    assert isinstance(start, torch.fx.Node)
    assert wait.target == collective_op("wait_tensor")
    assert start.args == (x, "sum", "x.data")  # y has one rank
    moved = facts(start).collective
    assert moved is not None
    assert (moved.kind, moved.axes, moved.size_bytes) == ("all_reduce", ("x", "data"), 60)


def test_no_ranks_no_collective() -> None:
    emit, x = emitter(Grid(2, 1, 1, 1), 3)
    assert emit.all_reduce(x, ("y", "z"), "sum") is x


def test_equal_calls_are_worked_out_once_and_factories_make_fake_tensors() -> None:
    emit, x = emitter(Grid(2, 1, 1, 1), 3, 5)
    first, second = (emit.call(aten.sum.dim_IntList, x, [1], False) for _ in range(2))
    assert first is not second
    assert first.meta["val"] is second.meta["val"]
    assert tuple(emit.call(aten.sum.dim_IntList, x, [1], True).meta["val"].shape) == (3, 1)
    assert is_fake(emit.call(aten.full.default, [2, 2], 1.0).meta["val"])


def test_the_first_position_of_a_part_has_the_first_axis_outermost() -> None:
    assert _evaluated(Grid(2, 1, 1, 4), lambda emit: emit.first(SubDim(16, ("data", "x")))) == [3 * 4 + 1 * 2]


def test_positions_in_padding_are_found_at_every_level() -> None:
    """Of 6 over data=2 and x=2, the second part of each half is one long and padded to two."""
    grid = Grid(2, 1, 1, 2)

    def beyond(emit: LocalEmitter) -> torch.fx.Node | None:
        positions = emit.call(aten.arange.start_step, 0, 2, 1, dtype=torch.int64)
        return emit.beyond(positions, SubDim(6, ("data", "x")))

    assert _evaluated(grid, beyond, data=0, x=1) == [False, True]
    assert _evaluated(grid, beyond, data=1, x=0) == [False, False]
    assert _evaluated(grid, beyond, data=1, x=1) == [False, True]


def _evaluated(grid: Grid, emitted: Any, data: int = 3, x: int = 1) -> Any:
    emit, _ = emitter(grid, 1)
    emit.graph.output((emitted(emit),))
    module = torch.fx.GraphModule(torch.nn.Module(), emit.graph)
    positions = {"coordinate_data": torch.tensor(data), "coordinate_x": torch.tensor(x)}
    names = [node.name for node in emit.graph.nodes if node.op == "placeholder"]
    (found,) = module(*(positions.get(name, torch.zeros(1)) for name in names))
    return found.reshape(-1).tolist()
