"""What a scheduler moves: the operators that take time, and what each needs, of a graph on local tensors.

Views, casts of nothing and waits take no time; they go where they are first needed. What is left are tasks: a task
computes, or it communicates on a channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from axograph.capture.program import DTYPE_NAMES, Program, facts
from axograph.cost_model.protocol import Compute, CostModel
from axograph.cost_model.simulator import STREAM, Step
from axograph.grid import Grid
from axograph.passes.dataflow import from_parameters, is_view
from axograph.passes.sharding.arguments import is_pick, kind_of, output_tensors, tensor_arguments
from axograph.passes.sharding.rules import rule_of
from axograph.torch_private import collective_op

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Task:
    """An operator that takes time."""

    number: int
    """Its position among the tasks, in the order of the graph given."""
    node: fx.Node
    track: str
    """`STREAM`, or the channel that it communicates on."""
    time_s: float
    needs: tuple[int, ...]
    """The tasks whose results it uses, seen through what takes no time."""
    users: list[int] = field(default_factory=list)
    """The tasks that use its results."""


class Clock:
    """The time of the stream while tasks run in an order in which each follows what it needs."""

    def __init__(self, contention: float = 1.0) -> None:
        self.contention = contention
        self.now_s = 0.0
        self.last_s = 0.0
        """When the last collective ends."""
        self.free_s: dict[str, float] = {}
        self.ends_s: dict[int, float] = {}
        """When each collective ends, by its number."""
        self.unused: deque[tuple[float, int]] = deque()
        """The collectives that no task waits for, and until when each may still be late."""

    def run(self, task: Task) -> None:
        """Wait for what a task needs, and run or start it; as `simulate` does."""
        for number in task.needs:
            end_s = self.ends_s.get(number)
            if end_s is not None and end_s > self.now_s:
                self.now_s = end_s
        if task.track != STREAM:
            begin_s = max(self.now_s, self.free_s.get(task.track, 0.0))
            end_s = self.ends_s[task.number] = self.free_s[task.track] = begin_s + task.time_s
            self.last_s = max(self.last_s, end_s)
            if not task.users:
                self.unused.append((end_s + task.time_s, task.number))
        elif self.last_s > self.now_s and self.contention != 1.0:
            slowed_s, slow_s = self.last_s - self.now_s, task.time_s * self.contention
            self.now_s += slow_s if slow_s <= slowed_s else slowed_s + task.time_s - slowed_s / self.contention
        else:
            self.now_s += task.time_s

    def long_ended(self) -> Iterator[int]:
        """The collectives that no task waits for and that ended, since last asked, as long ago as they took."""
        while self.unused and self.unused[0][0] <= self.now_s:
            yield self.unused.popleft()[1]


class Tasks(Sequence[Task]):
    """The tasks of one half of a program, with what they cost under a model."""

    def __init__(self, program: Program, grid: Grid, model: CostModel) -> None:
        self.graph = program.graph
        self.grid = grid
        self.model = model
        self._prices: dict[Hashable, float] = {}
        self._found: list[Task] = []
        self.of: dict[fx.Node, Task] = {}
        self._step_of: dict[fx.Node, Step] = {}
        behind: dict[fx.Node, frozenset[int]] = {}
        for node in self.graph.nodes:
            needs = frozenset[int]().union(*(behind[a] for a in node.all_input_nodes))
            time_s, track = self._price(node)
            if time_s > 0:
                task = Task(len(self._found), node, track, time_s, tuple(sorted(needs)))
                self._found.append(task)
                self.of[node] = task
                for needed in task.needs:
                    self._found[needed].users.append(task.number)
                behind[node] = frozenset({task.number})
            else:
                behind[node] = needs
        self.of_weights = {self.of[node].number for node in from_parameters(program) if node in self.of}
        """The tasks that follow from parameters alone, whatever the batch is: gathers of weights among them."""

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, number: int) -> Task:  # type: ignore[override]
        return self._found[number]

    def _price(self, node: fx.Node) -> tuple[float, str]:
        """The seconds of a node, and its track."""
        if node.op != "call_function" or is_pick(node) or node.target is collective_op("wait_tensor"):
            return 0.0, STREAM
        moved = facts(node).collective
        if moved is not None:
            channel = getattr(self.model, "channel", None)
            return self.model.collective_s(moved, self.grid), channel(moved, self.grid) if channel else "network"
        if is_view(node):
            return 0.0, STREAM
        kind = (node.target, kind_of((node.args, node.kwargs)), kind_of(node.meta["val"]))
        time_s = self._prices.get(kind)
        if time_s is None:
            time_s = self._prices[kind] = self.model.compute_s(self._work(node, kind))
        return time_s, STREAM

    def _work(self, node: fx.Node, kind: Hashable) -> Compute:
        tensors = [argument.meta["val"] for argument in tensor_arguments(node)]
        made = [tensor for tensor in output_tensors(node) if tensor is not None]
        of_addmm = node.target is aten.addmm.default
        flops = 2.0 * made[0].numel() * tensors[1].shape[1] if of_addmm else _flops(node, kind)
        size = sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *made))
        dtype = DTYPE_NAMES.get(made[0].dtype, "f32") if made else "f32"
        return Compute(op=str(node.target), flops=flops, size_bytes=float(size), dtype=dtype)

    def ordered(self, order: Iterable[Task], blocking: frozenset[int] = frozenset()) -> list[fx.Node]:
        """All nodes of the graph with the tasks in this order, and what takes no time where it is first needed.

        Collectives among the `blocking` tasks are waited for at once. Others that no task waits for are when they have
        long ended: what they sent need not be held until the end.
        """
        placed: dict[fx.Node, None] = {
            node: None for node in self.graph.nodes if node.op in ("placeholder", "get_attr")
        }

        def place(node: fx.Node) -> None:
            waiting = [node]
            while waiting:
                last = waiting[-1]
                missing = [needed for needed in last.all_input_nodes if needed not in placed]
                if missing:
                    waiting += reversed(missing)
                else:
                    placed[waiting.pop()] = None

        clock = Clock()
        for task in order:
            clock.run(task)
            for ended in clock.long_ended():
                for wait in self[ended].node.users:
                    place(wait)
            place(task.node)
            for user in task.node.users:  # what a task makes several of is taken apart at once: the rest may go
                if is_pick(user) or task.number in blocking:
                    place(user)
        for node in [node for node in placed if node in self.of and self.of[node].track != STREAM]:
            for user in node.users:  # what is only waited for at the end: first what ends first
                place(user)
        place(self.graph.output_node())
        return list(placed)

    def steps(self, nodes: Iterable[fx.Node]) -> list[Step]:
        """What a simulator plays for nodes in this order."""
        return list(self._steps(nodes))

    def _steps(self, nodes: Iterable[fx.Node]) -> Iterator[Step]:
        starts: dict[fx.Node, int] = {}
        wait = collective_op("wait_tensor")
        for position, node in enumerate(nodes):
            if node.target is wait and node.args[0] in starts:
                yield Step(kind="wait", name=node.name, of=starts[node.args[0]])  # type: ignore[index]
                continue
            step = self._step_of.get(node)
            if step is None:
                step = self._step_of[node] = self._step(node)
            if step.kind == "start":
                starts[node] = position
            yield step

    def _step(self, node: fx.Node) -> Step:
        task = self.of.get(node)
        if task is not None and task.track != STREAM:
            return Step(kind="start", name=_name(node), time_s=task.time_s, channel=task.track)
        return Step(kind="compute", name=_name(node), time_s=task.time_s if task is not None else 0.0)


def _flops(node: fx.Node, kind: Hashable) -> float:
    """The operations of a node, as its rule says. Halves of one program are looked at many times."""
    flops = _KNOWN.get(kind)
    if flops is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        flops = _KNOWN[kind] = rule_of(node).flops
    return flops


_KNOWN: dict[Hashable, float] = {}
_MOST_KNOWN = 20_000
"""How many kinds of operators are remembered."""


def _name(node: fx.Node) -> str:
    path = facts(node).path
    return f"{node.name} ({path})" if path else node.name
