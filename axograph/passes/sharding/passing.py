"""The most that is alive in passing under one assignment: gathered weights, and values between two operators.

Each half of the program is gone through in its order. A tensor is alive from where it is made, or brought to another
placement, to where it is used last; what `memory` counts as held (parameters, what is saved, results) counts nothing
here, and a view counts as the tensor behind it. Each step of a reshard holds the larger of its sides once more: parts
are copied so that they lie one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import fx

from axograph.capture.program import DTYPE_NAMES
from axograph.passes.dataflow import is_view
from axograph.passes.sharding.arguments import Value, output_tensors, resolve, tensor_arguments, tensor_of
from axograph.passes.sharding.memory import Held, communicates
from axograph.passes.sharding.reshard import Resharder
from axograph.passes.sharding.rule import Strategy
from axograph.placement import Placement

Copy = tuple[Value, Placement]
"""A tensor at a placement."""


class Lies(Protocol):
    """Where everything lies: the part of an `Assignment` that counts here."""

    @property
    def strategies(self) -> Mapping[fx.Node, Strategy]:
        """How each operator runs."""
        ...

    @property
    def values(self) -> Mapping[Value, Placement]:
        """Where inputs of the graph, and tensors with several users, lie for their users."""
        ...

    @property
    def results(self) -> Sequence[Placement | None]:
        """Where each output of the graph lies."""
        ...


def passing_bytes(held: Held, lies: Lies, resharder: Resharder) -> float:
    """The most bytes that are alive in passing, in either half."""
    order = [node for node in held.survey.nodes if node not in held.again]
    ahead = _Half(held, lies, resharder, [node for node in order if node in held.forward], False)
    most = ahead.peak()
    after = _Half(held, lies, resharder, [node for node in order if node not in held.forward], True, ahead.saved)
    after.recompute()
    return max(most, after.peak())


@dataclass(slots=True)
class _Half:
    held: Held
    lies: Lies
    resharder: Resharder
    order: list[fx.Node]
    is_backward: bool
    saved: set[Copy] = field(default_factory=set)
    """Of what is recomputed, the copies that forward saves: those brought elsewhere."""
    now: int = 0
    alive: dict[Copy, tuple[float, int, int]] = field(default_factory=dict)
    """The bytes of each copy, and the first and last time at which it is alive."""
    behind: dict[Copy, Copy] = field(default_factory=dict)
    """The copy behind each view."""
    brief: dict[int, float] = field(default_factory=dict)
    """What is alive at one time only."""

    def recompute(self) -> None:
        """Add what is run again to the order, each operator just before its first use."""
        order: list[fx.Node] = []
        done: set[fx.Node] = set()
        for node in self.order:
            waiting = [node]
            while waiting:
                missing = [maker for maker in self._run_again(waiting[-1]) if maker not in done]
                waiting += reversed(missing)
                if not missing and (last := waiting.pop()) not in done:
                    done.add(last)
                    order.append(last)
        self.order = order

    def _run_again(self, node: fx.Node) -> list[fx.Node]:
        """The operators that must be run again for this one."""
        wanted = zip(tensor_arguments(node), self.lies.strategies[node].inputs, strict=True)
        copies = [(resolve(argument), placed) for argument, placed in wanted]
        copies = [copy for copy in copies if copy[0][0] in self.held.redone and copy not in self.saved]
        return [value[0] for value, _ in copies if (value, self._home(value)) not in self.saved]

    def peak(self) -> float:
        """The most bytes alive at one time."""
        results: dict[Value, list[Placement]] = {}
        outputs = self.held.survey.program.outputs
        for result, declared, placed in zip(self.held.survey.results, outputs, self.lies.results, strict=True):
            if result is not None and placed is not None and (declared.kind == "gradient") == self.is_backward:
                results.setdefault(resolve(result), []).append(placed)
        for now, node in enumerate(self.order):
            self.now = now
            self._run(node)
            for index in range(len(output_tensors(node))):
                for placed in results.get((node, index), ()):
                    self._use((node, index), placed)
                    self._at_no_cost(((node, index), placed))
        change = [0.0] * (len(self.order) + 1)
        for size, first, last in self.alive.values():
            change[first] += size
            change[last + 1] -= size
        most = total = 0.0
        for now in range(len(self.order)):
            total += change[now]
            most = max(most, total + self.brief.get(now, 0.0))
        return most

    def _run(self, node: fx.Node) -> None:
        strategy = self.lies.strategies[node]
        read = [self._use(resolve(a), p) for a, p in zip(tensor_arguments(node), strategy.inputs, strict=True)]
        if not self.is_backward and node in self.held.redone:
            for value, placed in read:
                if value in self.held.unsaved and communicates(self._home(value), placed):
                    self._save((value, placed))
        for index, (tensor, made) in enumerate(zip(output_tensors(node), strategy.outputs, strict=True)):
            if tensor is None or made is None:
                continue
            value = (node, index)
            if is_view(node):
                self.behind[value, made] = read[0]
            else:
                self._make((value, made))
            home = self.lies.values.get(value, made)
            if home != made and (value, home) not in self.saved:
                self._bring((value, made), (value, home))
            if not self.is_backward and self.held.is_needed(value):
                if self.held.is_kept(value):
                    self._at_no_cost((value, home))
                elif value in self.held.unsaved and communicates(made, home):
                    self._save((value, home))

    def _use(self, value: Value, placed: Placement) -> Copy:
        """A tensor at a placement, alive now."""
        copy = (value, placed)
        home = self._home(value)
        if copy not in self.alive and copy not in self.behind:
            if copy in self.saved:
                self.alive[copy] = (0.0, self.now, self.now)
            elif placed != home:
                self._use(value, home)
                self._bring((value, home), copy)
            elif value[0] in self.lies.strategies and value[0] in self.held.again:
                self._run(value[0])
            else:
                self.alive[copy] = (0.0, self.now, self.now)  # a parameter, an input, or what forward saved
        self._touch(copy)
        return copy

    def _home(self, value: Value) -> Placement:
        known = self.lies.values.get(value)
        if known is None:
            known = self.lies.strategies[value[0]].outputs[value[1]]
        assert known is not None
        return known

    def _make(self, copy: Copy) -> None:
        if copy not in self.alive:
            self.alive[copy] = (self._bytes(copy), self.now, self.now)

    def _touch(self, copy: Copy) -> None:
        while copy in self.behind:
            copy = self.behind[copy]
        size, first, _ = self.alive[copy]
        self.alive[copy] = (size, first, self.now)

    def _save(self, copy: Copy) -> None:
        """A copy of what is recomputed, which backward is given."""
        self.saved.add(copy)
        self._at_no_cost(copy)

    def _at_no_cost(self, copy: Copy) -> None:
        """A copy that is counted elsewhere."""
        if copy in self.alive:
            _, first, last = self.alive[copy]
            self.alive[copy] = (0.0, first, last)

    def _bring(self, source: Copy, target: Copy) -> None:
        """A reshard, now."""
        self._touch(source)
        tensor = tensor_of(source[0])
        dtype = DTYPE_NAMES.get(tensor.dtype, "f32")
        path = self.resharder.path(source[1], target[1], dtype, tensor.element_size())
        sizes = [self._bytes(source)]
        sizes += [self._bytes((source[0], step.after)) for step in path.steps or ()]
        counted = [0.0, *sizes[1:-1], 0.0]  # the two ends are alive already
        for i, (before, after) in enumerate(itertools.pairwise(sizes)):
            copied = counted[i] + counted[i + 1] + max(before, after)
            self.brief[self.now] = max(self.brief.get(self.now, 0.0), copied)
        self._make(target)

    def _bytes(self, copy: Copy) -> float:
        value, placed = copy
        return placed.local_elements(self.held.survey.grid) * tensor_of(value).element_size()
