"""The verifier notices every way in which a schedule can be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import fx

from axograph.capture.program import facts
from axograph.errors import ScheduleError
from axograph.passes.scheduling.schedule import Schedule
from axograph.passes.scheduling.verify import verify
from tests.passes.scheduling.programs import GRID, MODEL, backward, tasks_of


def _start(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if facts(node).collective is not None)


def _use_before_wait(graph: fx.Graph) -> None:
    (wait,) = _start(graph).users
    next(iter(wait.users)).replace_input_with(wait, _start(graph))


def _use_before_definition(graph: fx.Graph) -> None:
    node = next(node for node in reversed(graph.nodes) if node.op == "call_function" and node.users)
    next(iter(node.users)).append(node)


def _never_waited_for(graph: fx.Graph) -> None:
    start = _start(graph)
    (wait,) = start.users
    wait.replace_all_uses_with(start.args[0])
    graph.erase_node(wait)


def _another_operand(graph: fx.Graph) -> None:
    node = next(node for node in graph.nodes if len(node.all_input_nodes) == 2)
    first, second = node.all_input_nodes
    node.replace_input_with(second, first)


def _lost(graph: fx.Graph) -> None:
    node = next(node for node in graph.nodes if node.op == "call_function" and len(node.all_input_nodes) == 1)
    node.replace_all_uses_with(node.all_input_nodes[0])
    graph.erase_node(node)


@pytest.mark.parametrize(
    "change", [_use_before_wait, _use_before_definition, _never_waited_for, _another_operand, _lost]
)
def test_a_schedule_that_is_changed_is_refused(change: Callable[[fx.Graph], None]) -> None:
    before = backward()
    _, lifetimes = tasks_of(before)
    after = Schedule(grid=GRID, cost_model=MODEL).run(before).graph
    verify(before.graph, after, lifetimes, float("inf"))
    change(after)
    with pytest.raises(ScheduleError):
        verify(before.graph, after, lifetimes, float("inf"))


def test_more_memory_than_the_cap_is_refused() -> None:
    before = backward()
    _, lifetimes = tasks_of(before)
    with pytest.raises(ScheduleError, match="more memory"):
        verify(before.graph, before.graph, lifetimes, lifetimes.peak(list(before.graph.nodes)) - 1)
