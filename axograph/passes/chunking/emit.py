"""Emitting a local program in chunks: each operator once for each chunk, or once on the whole.

Between the two, chunks are slices of a whole tensor, a whole tensor is its chunks joined, and a sum over the batch is
the sum of the chunks' sums.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from axograph.capture.program import FACTS, Program, facts, note, value
from axograph.passes.chunking.cuts import Cuts, share
from axograph.passes.rewrite import finish
from axograph.passes.sharding.arguments import Value, is_pick, output_tensors, resolve
from axograph.passes.sharding.collectives import LocalEmitter
from axograph.passes.sharding.rule import Strategy
from axograph.placement import Placement, SubDim

aten = torch.ops.aten

Chunks = tuple[fx.Node, ...]
"""A tensor: as one node, or a node for each chunk."""


class _Emitter(LocalEmitter):
    """Notes on each node the chunk that it works on."""

    chunk: int | None = None

    @contextmanager
    def on(self, chunk: int | None) -> Iterator[None]:
        """What is emitted meanwhile works on this chunk; None: on the whole."""
        before, self.chunk = self.chunk, chunk
        yield
        self.chunk = before

    def first(self, sub: SubDim) -> fx.Node:
        """The first position of the chunk's part of a sub-dim; a scalar."""
        assert self.chunk is not None
        device = value(next(iter(self.graph.nodes))).device
        return self.call(aten.full.default, [], self.chunk * sub.local(self.grid), dtype=torch.int64, device=device)

    def _inherit(self, node: fx.Node) -> None:
        super()._inherit(node)
        note(node, chunk=self.chunk)


class Chunker:
    """Rewrites one program."""

    def __init__(self, program: Program, cuts: Cuts) -> None:
        self.program = program
        self.cuts = cuts
        self.emit = _Emitter(cuts.grid)
        self.made: dict[fx.Node, tuple[Any, ...]] = {}
        """What stands for each operator, once or for each chunk: a node, or several where it was taken apart."""
        self.picks: dict[tuple[fx.Node, int], fx.Node] = {}
        self.lies: dict[Value, Placement] = {}
        """How the operator that made it left each tensor: whole, or cut along the pretended axis of the chunks."""
        self.at: dict[tuple[Value, Placement], Chunks] = {}

    def run(self) -> Program:
        """The program in chunks."""
        for node in self.program.graph.nodes:
            self.emit.origin = node
            if node.op == "placeholder":
                self._arrive((node, 0), self.emit.placeholder(node.name, node.meta["val"], facts(node)))
            elif node.op == "call_function" and is_pick(node):
                self._pick(node)
            elif node.op == "call_function" and node in self.cuts.strategies:
                self._in_chunks(node, self.cuts.strategies[node])
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: self._given(argument, 0))
                self._once(node, tuple(args), dict(kwargs))
        results = []
        for result in self.program.results():
            self.emit.origin = result
            results.append(None if result is None else self.fetch(resolve(result))[0])
        self._rename_forward()
        return finish(self.program, self.emit.graph, tuple(results), self.program.inputs, "Chunked")

    # -- operators ----------------------------------------------------------------------------------------------------

    def _once(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The operator as it was, on whole tensors."""
        copied = self.emit.copy(node, args, kwargs)
        self.made[node] = (copied,)
        if isinstance(node.meta.get("val"), torch.Tensor):
            self._arrive(resolve(node), copied)

    def _pick(self, node: fx.Node) -> None:
        """One output of an operator; those of chunks are picked where they are made."""
        maker, index = resolve(node)
        if maker not in self.cuts.strategies:
            self._once(node, (self.made[maker][0], index), {})

    def _in_chunks(self, node: fx.Node, strategy: Strategy) -> None:
        """The operator on each chunk; of the same arguments, the same operator makes the same."""
        rule = self.cuts.survey.rules[node]
        same = rule.lower is None or rule.is_view
        sums = node.target is aten.mm.default and bool(strategy.outputs[0] and strategy.outputs[0].partial)
        known: dict[str, Any] = {}
        made: list[Any] = []
        for chunk in range(self.cuts.chunks):
            given = partial(self._given, chunk=chunk, wanted=iter(strategy.inputs))
            args, kwargs = fx.map_arg((node.args, node.kwargs), given)
            if sums and made:
                with self.emit.on(chunk):
                    made.append(self.emit.call(aten.addmm.default, made[-1], *args))
                continue
            key = repr((args, kwargs)) if same else str(chunk)
            if key not in known:
                with self.emit.on(chunk):
                    known[key] = self._one(node, strategy, tuple(args), dict(kwargs))
            made.append(known[key])
        self.made[node] = tuple(made)
        if sums:
            self._arrive((node, 0), made[-1])
            return
        for i, (tensor, placed) in enumerate(zip(output_tensors(node), strategy.outputs, strict=True)):
            parts = tuple(self._output(node, one, i) for one in made) if tensor is not None else (None,)
            if placed is not None and parts[0] is not None:
                self._leave((node, i), parts, placed)

    def _one(self, node: fx.Node, strategy: Strategy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator on one chunk."""
        moved = facts(node).collective
        if moved is not None:
            args = tuple(fx.map_arg(args, self._contiguous))
        lower = self.cuts.survey.rules[node].lower
        if lower is not None:
            return lower(self.emit, node, args, kwargs, strategy)
        made = self.emit.call(node.target, *args, **kwargs)
        if moved is not None:
            note(made, collective=share(moved, self.cuts.chunks))
        return made

    def _contiguous(self, argument: fx.Node) -> fx.Node:
        return argument if value(argument).is_contiguous() else self.emit.call(aten.contiguous.default, argument)

    def _output(self, node: fx.Node, made: Any, index: int) -> Any:
        """One output of what stands for an operator."""
        if isinstance(made, tuple):
            return made[index]
        if not isinstance(node.meta["val"], tuple | list):
            return made
        picked = self.picks.get((made, index))
        if picked is None:
            picked = self.emit.graph.call_function(operator.getitem, (made, index))
            picked.meta = {"val": made.meta["val"][index], FACTS: replace(facts(made), placements=())}
            self.picks[made, index] = picked
        return picked

    # -- tensors ------------------------------------------------------------------------------------------------------

    def _leave(self, of: Value, parts: Chunks, placed: Placement) -> None:
        """What an operator made of each chunk: chunks, parts of a sum, or the same each time."""
        if placed.partial:
            join = aten.add.Tensor if placed.partial[0][1] == "sum" else aten.maximum.default
            total = parts[0]
            for chunk, one in enumerate(parts[1:], 1):
                with self.emit.on(chunk):
                    total = self.emit.call(join, total, one)
            self._arrive(of, total)
        elif placed.axes:
            self.lies[of] = placed
            self.at[of, placed] = parts
        else:
            self._arrive(of, parts[0])

    def _arrive(self, of: Value, whole: fx.Node) -> None:
        placed = self.lies[of] = self.cuts.whole(of)
        self.at[of, placed] = (whole,)

    def _given(self, argument: fx.Node, chunk: int, wanted: Iterator[Placement] | None = None) -> fx.Node:
        """An argument of an operator on a chunk, as its strategy wants it; without one, the whole."""
        of = resolve(argument)
        if isinstance(argument.meta.get("val"), torch.Tensor):
            chunks = self.fetch(of, next(wanted) if wanted is not None else None)
            return chunks[min(chunk, len(chunks) - 1)]
        made = self.made[of[0]]
        mine = made[min(chunk, len(made) - 1)]
        return mine if of[0] is argument else self._output(of[0], mine, of[1])  # type: ignore[no-any-return]

    def fetch(self, of: Value, target: Placement | None = None) -> Chunks:
        """A tensor in the chunks of a placement, or whole."""
        whole = self.cuts.whole(of)
        wanted = target if target is not None and target.axes else whole
        known = self.at.get((of, wanted))
        if known is None:
            if wanted == whole:
                lies = self.lies[of]
                known = (self._joined(self.at[of, lies], lies),)
            else:
                known = self._sliced(self.fetch(of)[0], wanted)
            self.at[of, wanted] = known
        return known

    def _joined(self, parts: Chunks, placed: Placement) -> fx.Node:
        """The whole tensor."""
        dim, outer, length = self._where(placed)
        shape = list(value(parts[0]).shape)
        with self.emit.on(None):
            if outer > 1:
                apart = [*shape[:dim], outer, length, *shape[dim + 1 :]]
                parts = tuple(self.emit.call(aten.reshape.default, one, apart) for one in parts)
            made = self.emit.call(aten.cat.default, list(parts), dim if outer == 1 else dim + 1)
            if outer > 1:
                shape[dim] *= self.cuts.chunks
                made = self.emit.call(aten.reshape.default, made, shape)
        note(made, reason=f"{self.cuts.chunks} chunks joined")
        return made

    def _sliced(self, whole: fx.Node, placed: Placement) -> Chunks:
        """The chunks of a whole tensor."""
        dim, outer, length = self._where(placed)
        shape, chunks = list(value(whole).shape), self.cuts.chunks
        along = dim if outer == 1 else dim + 1
        if outer > 1:
            with self.emit.on(None):
                apart = [*shape[:dim], outer, chunks * length, *shape[dim + 1 :]]
                whole = self.emit.call(aten.reshape.default, whole, apart)
        made = []
        for chunk in range(chunks):
            with self.emit.on(chunk):
                one = self.emit.call(aten.slice.Tensor, whole, along, chunk * length, (chunk + 1) * length)
                if outer > 1:
                    one = self.emit.call(aten.reshape.default, one, list(placed.local_shape(self.cuts.grid)))
            made.append(one)
        return tuple(made)

    def _where(self, placed: Placement) -> tuple[int, int, int]:
        """The dim that chunks cut, how many stretches of it each has, and how long these are."""
        for dim, subs in enumerate(placed.dims):
            for at, sub in enumerate(subs):
                if sub.axes:
                    outer, inner = (math.prod(s.size for s in some) for some in (subs[:at], subs[at + 1 :]))
                    return dim, outer, sub.local(self.cuts.grid) * inner
        raise AssertionError(f"{placed} is whole")

    def _rename_forward(self) -> None:
        """Point backward nodes at the new names of their forward nodes, chunk by chunk."""
        names = {node.name: tuple(_name(one) for one in made) for node, made in self.made.items()}
        for node in self.emit.graph.nodes:
            about = facts(node)
            if about.forward in names:
                of_chunks = names[about.forward]
                note(node, forward=of_chunks[min(about.chunk or 0, len(of_chunks) - 1)])


def _name(made: Any) -> str:
    first = next(one for one in made if one is not None) if isinstance(made, tuple) else made
    return str(first.name)
