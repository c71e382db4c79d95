"""What a rank holds in each state of the search, in bytes: the same shape of problem as its seconds.

Parameters, gradients and optimizer state follow from where a parameter is stored. What forward saves for backward
follows from where tensors lie for their users, by the rules of the pass `split`: a view keeps the tensor behind it, so
tensors that are views of each other are held once; each reshard between them holds another copy; and what follows from
parameters alone is made again, unless holding it costs less. Of what backward recomputes (see `remat`), only copies
that were brought elsewhere are saved. Where two states do not tell whether a copy is shared, it is counted: an upper
estimate.

What is alive only in passing depends on more than pairs of states. `passing_bytes` has it for one assignment, by going
through the program in its order.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import fx

from axograph.capture.program import DTYPE_NAMES
from axograph.passes.dataflow import ancestors, behind, from_parameters, is_view, with_picks
from axograph.passes.remat import recomputed
from axograph.passes.sharding.arguments import Value, output_tensors, resolve, tensor_arguments, tensor_of
from axograph.passes.sharding.elimination import Problem
from axograph.passes.sharding.reshard import Resharder
from axograph.passes.sharding.states import Member
from axograph.passes.sharding.survey import Survey
from axograph.placement import Placement

Array = npt.NDArray[np.float64]

Slots = Sequence[Placement | None]
"""The placement of one tensor in each state."""

KINDS = ("parameters", "gradients", "optimizer", "saved", "batch")
"""The kinds of what is held."""


class _Alone(NamedTuple):
    """A tensor that is held where one member has it."""

    kind: str
    member: Hashable
    made: bool
    """Whether the member makes it, rather than takes it."""
    at: int
    element_bytes: int


class _Apart(NamedTuple):
    """A tensor that is held once more where its target takes it, if it lies elsewhere."""

    source: Hashable
    output: int
    target: Hashable
    at: int
    element_bytes: int
    ahead: tuple[tuple[Hashable, int], ...] | None = None
    """For a target of the backward half, who takes the tensor in the forward half, and may have it brought there."""
    redone: bool = False
    """Whether the tensor is recomputed: then it is held where a collective brought it, not where it is sliced."""
    weight: str = ""
    """For what follows from parameters, its element type: it is held where bringing it there again would cost more."""


@dataclass(slots=True)
class Held:
    """What each state of a search holds. The fields are those of the `Search`."""

    survey: Survey
    members: dict[Hashable, Member]
    member_of: dict[fx.Node, Hashable]
    shared: dict[Value, Hashable]
    results: Sequence[Hashable]
    resharder: Resharder
    blocks: bool = False
    """Whether backward recomputes the insides of blocks."""
    optimizer_copies: float = 2.0
    """How many tensors like a parameter the optimizer holds for it: AdamW's two moments."""
    alone: defaultdict[_Alone, float] = field(init=False, default_factory=lambda: defaultdict(float))
    """What each state of one member holds, with how often it counts."""
    apart: Counter[_Apart] = field(init=False, default_factory=Counter)
    """What is held where two members have a tensor at different places."""
    fixed: dict[str, float] = field(init=False, default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """The bytes that every state holds, by kind."""
    forward: set[fx.Node] = field(init=False)
    again: set[fx.Node] = field(init=False)
    """What is made again from parameters rather than saved."""
    unsaved: set[Value] = field(init=False)
    """What is recomputed where backward needs it."""
    redone: set[fx.Node] = field(init=False)
    """The operators of the forward half that backward may run again, views among them."""
    repeats: set[fx.Node] = field(init=False)
    """Operators of the backward half that do what one of the forward half does: if they lie alike, they become one."""
    _possible: dict[Hashable, npt.NDArray[np.bool_]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        pairs = list(zip(self.survey.results, self.survey.program.outputs, strict=True))
        self.forward = ancestors(result for result, declared in pairs if declared.kind != "gradient")
        self.again = from_parameters(self.survey.program)
        self.repeats = _repeats(self.survey.program.graph, self.forward)
        inside = recomputed(self.survey.program.graph, with_picks(self.forward), blocks=self.blocks)
        self.unsaved = {resolve(node) for node in inside}
        gradients = [result for result, declared in pairs if declared.kind == "gradient"]
        _, passed = behind(gradients, lambda node: self._ends_walk(node, inside))
        self.redone = {resolve(node)[0] for node in passed & inside} - self.again
        self._ends()
        if any(declared.kind == "gradient" for _, declared in pairs):
            self._saved()

    def _ends_walk(self, node: fx.Node, inside: set[fx.Node]) -> bool:
        """Whether backward is given what a node makes, or makes it from parameters."""
        if node.op == "placeholder" or node in self.again:
            return True
        return node in self.forward and node not in inside and not is_view(node)

    def problem(self) -> Problem:
        """The bytes of each state and of each pair of states."""
        whole = Problem()
        for member in self.members.values():
            whole.add_variable(member.variable, np.zeros(len(member.inputs)))
        for one, factor in self.alone.items():
            member = self.members[one.member]
            states = member.outputs if one.made else member.inputs
            whole.add_variable(member.variable, factor * self._local(states, one.at, one.element_bytes))
        for two, factor in self.apart.items():
            source, target = self.members[two.source], self.members[two.target]
            possible = self._taken_ahead(two)
            if possible.any():
                lies, taken = [s[two.output] for s in source.outputs], [s[two.at] for s in target.inputs]
                whole.add_pair(source.variable, target.variable, self._held(two, lies, taken) * (factor * possible))
        return whole

    @property
    def fixed_bytes(self) -> float:
        """What every state holds."""
        return sum(self.fixed.values())

    def whole_bytes(self) -> float:
        """What one rank alone would hold, but for what is fixed."""
        total = 0.0
        for one, factor in self.alone.items():
            member = self.members[one.member]
            placed = (member.outputs if one.made else member.inputs)[0][one.at]
            total += 0.0 if placed is None else factor * math.prod(placed.shape) * one.element_bytes
        return total

    def by_kind(self, states: Mapping[Hashable, int]) -> dict[str, float]:
        """The bytes of one assignment, by kind."""
        grid = self.survey.grid
        found = dict(self.fixed)
        for one, factor in self.alone.items():
            member = self.members[one.member]
            placed = (member.outputs if one.made else member.inputs)[states[member.variable]][one.at]
            if placed is not None:
                found[one.kind] += factor * placed.local_elements(grid) * one.element_bytes
        for two, factor in self.apart.items():
            source, target = self.members[two.source], self.members[two.target]
            state = states[target.variable]
            if self._taken_ahead(two)[state]:
                lies, taken = source.outputs[states[source.variable]][two.output], target.inputs[state][two.at]
                found["saved"] += factor * float(self._held(two, [lies], [taken])[0, 0])
        return found

    def passing_at_least(self) -> dict[Hashable, Array]:
        """For each state of each variable, what is alive in passing at least while one of its operators runs."""
        found: dict[Hashable, Array] = {}
        done: set[Hashable] = set()
        results = set(self.survey.gradients().values())
        for node in self.survey.nodes:
            key = self.member_of[node]
            if key in done or is_view(node):
                continue
            done.add(key)
            member = self.members[key]
            alive = np.zeros(len(member.inputs))
            read = [resolve(argument) for argument in tensor_arguments(node)]
            for at, value in enumerate(read):
                if value not in read[:at] and value not in self.unsaved:  # if brought here, it may be saved
                    alive += self._passing(value, results) * self._local(member.inputs, at, _element_bytes(value))
            for index, tensor in enumerate(output_tensors(node)):
                if tensor is not None:
                    value = (node, index)
                    alive += self._passing(value, results) * self._local(member.outputs, index, _element_bytes(value))
            known = found.get(member.variable)
            found[member.variable] = alive if known is None else np.maximum(known, alive)
        return found

    def _passing(self, value: Value, results: Collection[Value]) -> bool:
        """Whether a tensor is held by nothing but its use."""
        while value[0] not in self.survey.placeholders and is_view(value[0]):
            behind = resolve(value[0].all_input_nodes[0])
            if tensor_of(behind).numel() != tensor_of(value).numel():
                return False
            value = behind
        node = value[0]
        held = self.is_kept(value) and self.is_needed(value)
        return node not in self.survey.placeholders and node not in self.again and not held and value not in results

    # -- what goes in and comes out -----------------------------------------------------------------------------------

    def _ends(self) -> None:
        gradients = self.survey.gradients()
        changed = {declared.target for declared in self.survey.program.outputs if declared.kind == "buffer"}
        for node, declared in self.survey.placeholders.items():
            value = (node, 0)
            if declared.kind == "parameter":
                self._hold("parameters", value)
                if declared.target in gradients:
                    self._hold("gradients", value)
                    self._hold("optimizer", value, self.optimizer_copies)
            elif declared.kind in ("buffer", "constant"):
                # a call that changes a buffer works on a copy, and keeps one for backward
                self._hold("parameters", value, 3 if declared.target in changed else 1)
            else:
                self._hold("batch", value)
                if declared.kind == "user":
                    self.fixed["batch"] += tensor_of(value).numel() * _element_bytes(value)
        for key, result, output in zip(self.results, self.survey.results, self.survey.program.outputs, strict=True):
            if result is not None and output.kind not in ("gradient", "buffer"):
                self.alone[_Alone("batch", key, False, 0, _element_bytes(resolve(result)))] += 1

    def _hold(self, kind: str, value: Value, factor: float = 1) -> None:
        """Count a tensor where it lies for its users."""
        key, output = self._home(value)
        self.alone[_Alone(kind, key, True, output, _element_bytes(value))] += factor

    # -- what is saved for backward -----------------------------------------------------------------------------------

    def _saved(self) -> None:
        operators, tensors = self.survey.remade()
        for value in tensors:
            dtype = DTYPE_NAMES.get(tensor_of(value).dtype, "f32")
            ahead, size = self._ahead(value), _element_bytes(value)
            if value in self.shared and value[0] in self.member_of:
                made = self.member_of[value[0]]
                self.apart[_Apart(made, value[1], self.shared[value], 0, size, weight=dtype)] += 1
            for node, at in self.survey.users[value]:
                if at >= 0 and (node in operators or node not in self.forward):
                    takers = None if node in self.forward else ahead
                    two = _Apart(*self._home(value), self.member_of[node], at, size, takers, weight=dtype)
                    self.apart[two] += 1
        for node in self.survey.placeholders:
            if node not in self.again:
                self._below((node, 0))
        for node in self.survey.nodes:
            self._positions(node)
            for index, tensor in enumerate(output_tensors(node)) if not is_view(node) else ():
                if tensor is not None and self.is_needed((node, index)):
                    self._save((node, index))

    def _save(self, value: Value) -> None:
        """Count what is saved of a tensor that backward needs."""
        if self.is_kept(value):
            anchor = self._anchor(value)
            self._hold("saved", anchor)
            self._below(anchor)
        elif value in self.unsaved:
            if value in self.shared:
                made, size = self.member_of[value[0]], _element_bytes(value)
                self.apart[_Apart(made, value[1], self.shared[value], 0, size, redone=True)] += 1
            self._below(value)

    def _positions(self, node: fx.Node) -> None:
        """A lookup over a cut dim keeps the positions it looks up, moved and masked, and the mask."""
        if node in self.forward and self.survey.rules[node].lower is not None:
            for at, tensor in enumerate(argument.meta["val"] for argument in tensor_arguments(node)):
                if not (tensor.is_floating_point() or tensor.is_complex()):
                    key = _Alone("saved", self.member_of[node], False, at, tensor.element_size() + 1)
                    self.alone[key] += 1

    def is_kept(self, value: Value) -> bool:
        """Whether a tensor is saved where backward needs it."""
        node = value[0]
        return (node in self.forward or node in self.repeats) and node not in self.again and value not in self.unsaved

    def is_needed(self, value: Value) -> bool:
        """Whether backward takes a tensor, or a view of it."""
        return bool(self._direct(value)) or bool(self._views(value))

    def _anchor(self, value: Value) -> Value:
        """The last of a chain of views, all of one size, through which alone a tensor is needed."""
        views = self._views(value)
        while len(views) == 1 and not self._direct(value) and tensor_of(views[0]).numel() == tensor_of(value).numel():
            value = views[0]
            views = self._views(value)
        return value

    def _below(self, value: Value) -> None:
        """Count the reshards between a tensor and what backward takes of it or of its views."""
        size = _element_bytes(value)
        home, output = self._home(value)
        redone = value in self.unsaved
        for view in self._views(value):
            own = self.member_of[view[0]]
            self.apart[_Apart(home, output, own, 0, size, redone=redone)] += 1
            if view in self.shared:
                self.apart[_Apart(own, 0, self.shared[view], 0, size, redone=view in self.unsaved)] += 1
            self._below(view)
        ahead = self._ahead(value)
        for node, at in self._direct(value) if ahead else ():
            key = self.member_of[node] if at >= 0 else self.results[-1 - at]
            self.apart[_Apart(home, output, key, max(at, 0), size, ahead, redone)] += 1

    def _held(self, two: _Apart, lies: Slots, taken: Slots) -> Array:
        """For each pair of states, the bytes of the copy that is held where the target takes the tensor."""
        sources = self.resharder.number(placed for placed in lies if placed is not None)
        targets = self.resharder.number(placed for placed in taken if placed is not None)
        apart = sources[:, None] != targets[None, :]
        local = np.array([placed.local_elements(self.survey.grid) for placed in taken if placed is not None])
        if two.redone:
            moved = {
                (a, b): communicates(lies[int(np.argmax(sources == a))], taken[int(np.argmax(targets == b))])
                for a in np.unique(sources)
                for b in np.unique(targets)
            }
            apart &= np.array([[moved[a, b] for b in targets] for a in sources])
        if two.weight and taken[0] is not None:
            size = math.prod(taken[0].shape) * two.element_bytes
            hold_s = [self.resharder.model.hold_s(float(part)) for part in local * two.element_bytes]
            apart &= self.resharder.table(sources, targets, size, two.weight) > np.array(hold_s)[None, :]
        held: Array = apart * (local * float(two.element_bytes))[None, :]
        return held

    def _taken_ahead(self, two: _Apart) -> npt.NDArray[np.bool_]:
        """For each state of the target, whether forward may have brought the tensor to where the target takes it."""
        target = self.members[two.target]
        if two.ahead is None:
            return np.ones(len(target.inputs), dtype=bool)
        known = self._possible.get(two)
        if known is None:
            known = np.zeros(len(target.inputs), dtype=bool)
            for key, at in two.ahead:
                other = self.members[key]
                if other.variable == target.variable:
                    same = [a[at] == b[two.at] for a, b in zip(other.inputs, target.inputs, strict=True)]
                else:
                    common = {placements[at] for placements in other.inputs}
                    same = [b[two.at] in common for b in target.inputs]
                known |= np.array(same)
            self._possible[two] = known
        return known

    def _ahead(self, value: Value) -> tuple[tuple[Hashable, int], ...]:
        """Who takes a tensor in the forward half, and at which place."""
        users = self.survey.users.get(value, ())
        return tuple((self.member_of[node], at) for node, at in users if at >= 0 and node in self.forward)

    def _direct(self, value: Value) -> list[tuple[fx.Node, int]]:
        """The operators of the backward half, or run again there, that take a tensor, and at which place."""
        users = self.survey.users.get(value, ())
        outputs = self.survey.program.outputs
        return [
            (node, at)
            for node, at in users
            if (at >= 0 and (node not in self.forward or (node in self.redone and not is_view(node))))
            or (at < 0 and outputs[-1 - at].kind == "gradient")
        ]

    def _views(self, value: Value) -> list[Value]:
        """The views of a tensor in the forward half that backward needs."""
        found = []
        for node, at in self.survey.users.get(value, ()):
            if at == 0 and node in self.forward and is_view(node) and self.is_needed((node, 0)):
                found.append((node, 0))
        return found

    # -- sizes --------------------------------------------------------------------------------------------------------

    def _home(self, value: Value) -> tuple[Hashable, int]:
        """What decides where a tensor lies for its users, and at which of its outputs."""
        if value in self.shared:
            return self.shared[value], 0
        return self.member_of[value[0]], value[1]

    def _local(self, states: Sequence[tuple[Placement | None, ...]], at: int, element_bytes: int) -> Array:
        """The bytes of a rank's part in each state."""
        grid = self.survey.grid
        return np.array(
            [0.0 if (p := s[at]) is None else float(p.local_elements(grid) * element_bytes) for s in states]
        )


def communicates(source: Placement | None, target: Placement | None) -> bool:
    """Whether a tensor is brought from one placement to another by more than slices."""
    if source is None or target is None:
        return False
    pairs = zip(source.dims, target.dims, strict=True)
    sliced = all(b.axes[: len(a.axes)] == a.axes for x, y in pairs for a, b in zip(x, y, strict=True))
    return not sliced or source.partial != target.partial


def _element_bytes(value: Value) -> int:
    return tensor_of(value).element_size()


def _repeats(graph: fx.Graph, forward: set[fx.Node]) -> set[fx.Node]:
    first: dict[Hashable, fx.Node] = {}
    same: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        key: Hashable = node
        if node.op == "call_function":
            args = fx.map_arg((node.args, node.kwargs), lambda argument: same[argument])
            made = tuple(None if tensor is None else tensor.dtype for tensor in output_tensors(node))
            key = (node.target, repr(args), made)
        same[node] = first.setdefault(key, node)
    return {node for node, other in same.items() if node not in forward and other in forward}
