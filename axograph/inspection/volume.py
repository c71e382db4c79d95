"""`volume`: the words that each rank moves in a step, product by product, next to what it must move at least.

Words are elements, moved by rings: n ranks with S elements on the larger side move (n-1)/n S for an all-gather, a
reduce-scatter or an all-to-all, and twice that for an all-reduce.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import networkx as nx
import torch
from torch import fx

from axograph.capture.program import Program, facts, value
from axograph.codegen.module import ParallelModule
from axograph.cost_model.lower_bounds import training_words
from axograph.cost_model.route import steps
from axograph.errors import AxographError
from axograph.grid import Grid
from axograph.plan import MatmulPlacement, Plan

aten = torch.ops.aten

_ROWS = {aten.mm.default: 0, aten.addmm.default: 1}
"""The products, and which of their arguments is I, the rows."""

_MOVES = {
    aten._to_copy.default,
    aten.constant_pad_nd.default,
    aten.contiguous.default,
    aten.expand.default,
    aten.index_select.default,
    aten.permute.default,
    aten.reshape.default,
    aten.slice.Tensor,
}
"""Operators that take a tensor apart or copy it, and change none of its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What some collectives move."""

    words: float = 0.0
    """Elements that a rank sends, and as many that it receives."""
    size_bytes: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(words=self.words + other.words, size_bytes=self.size_bytes + other.size_bytes)

    def scaled(self, factor: float) -> Moved:
        """So many times this."""
        return Moved(words=self.words * factor, size_bytes=self.size_bytes * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductVolume:
    """What is moved for the products that share an input, forward and backward, and what must be."""

    paths: tuple[str, ...]
    """Their modules."""
    shapes: tuple[tuple[int, int, int], ...]
    """The global (m, n, k), the products of one input as one: their n added up."""
    cuts: tuple[str, ...]
    """Their placements, without repetition, such as "m/z k/x n/y"."""
    moved: Moved
    bound_words: float
    """The least words, see `axograph.cost_model.lower_bounds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a rank moves in a step, forward and backward.

    A gather counts for the product that it leads to, a reduction for the product that it comes from, and an all-reduce,
    which is one after the other, half for each. What has no product before or after it counts for its module.
    """

    grid: Grid
    products: tuple[ProductVolume, ...]
    others: dict[str, Moved] = field(default_factory=dict)
    """By module, what belongs to no product."""

    @property
    def moved(self) -> Moved:
        """The whole step."""
        return sum((*(p.moved for p in self.products), *self.others.values()), Moved())

    @property
    def bound_words(self) -> float:
        """The sum of the products' bounds: each supposes one copy of its operands and results before and after."""
        return sum(product.bound_words for product in self.products)

    def __str__(self) -> str:
        lines = Counter(_described(product) for product in self.products)
        rows = [(f"{what} ({n} times)" if n > 1 else what, *rest) for (what, *rest), n in lines.items()]
        rest = sum(self.others.values(), Moved())
        if rest.words:
            rows.append(("all else", "", "", *_amounts(rest), ""))
        rows.append(("the step", "", "", *_amounts(self.moved), _bound(self.bound_words, self.moved)))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        header = f"volume on grid {self.grid}: what each of {self.grid.size} ranks moves in a step, by rings"
        return "\n".join([header, *(f"  {_aligned(row, widths)}" for row in rows)])


def volume(compiled: ParallelModule | Program) -> Volume:
    """Count what a compiled module moves in its latest kind of call; also takes the split program itself.

    Raises `AxographError` where nothing is compiled yet, or the program has not been sharded.

    >>> import axograph
    >>> module = axograph.parallelize(torch.nn.Linear(16, 4), (2, 1, 1, 1), sample_inputs=(torch.ones(8, 16),))
    >>> volume(module).moved  # half of the output, from the other rank
    Moved(words=16.0, size_bytes=64.0)
    """
    program = compiled if isinstance(compiled, Program) else _latest(compiled)
    if program.plan is None:
        raise AxographError(
            "the program lies on no grid yet",
            asked="volume of a program",
            given="a program without a plan",
            rule="what is moved follows from the placements that the passes shard, localize and split work out",
            remedy="pm.stages['split'].program, or pm itself",
        )
    return _Reckoning(program, program.plan).run()


def _latest(module: ParallelModule) -> Program:
    """The program before collectives of several modules become one."""
    assert module.plan, "raises where nothing is compiled"
    names = list(module.stages)
    return module.stages[names[names.index("bucket") - 1 if "bucket" in names else -1]].program


class _Input(NamedTuple):
    """What products may share."""

    source: fx.Node
    m: int
    k: int


class _Reckoning:
    """The products of a program, and what each collective is there for."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self.program = program
        self.plan = plan
        self.halves = [program] if program.backward is None else [program, program.backward]
        self.products: dict[str, list[MatmulPlacement]] = defaultdict(list)
        """By module; a module that is called several times has several."""
        self.inputs: dict[_Input, list[MatmulPlacement]] = defaultdict(list)
        for node in program.graph.nodes:
            if _is_product(node) and (placed := self._next_product(facts(node).path)) is not None:
                self.products[facts(node).path].append(placed)
                source = _source(node.args[_ROWS[node.target]])
                self.inputs[_Input(source, placed.shape[0], placed.shape[1])].append(placed)

    def _next_product(self, path: str) -> MatmulPlacement | None:
        count = len(self.products[path]) + 1
        return self.plan.matmuls.get(path if count == 1 else f"{path}#{count}")

    def run(self) -> Volume:
        moved: dict[str, Moved] = defaultdict(Moved)
        for half in self.halves:
            for node in half.graph.nodes:
                for path, part in self._attributed(node):
                    moved[path] += part
        products = tuple(self._product(paths, moved) for paths in self._groups())
        return Volume(grid=self.plan.grid, products=products, others={p or "the model": m for p, m in moved.items()})

    def _attributed(self, node: fx.Node) -> Iterator[tuple[str, Moved]]:
        """Whom a node moves something for, and how much."""
        collective = facts(node).collective
        if collective is None:
            return
        ranks = self.plan.grid.extent(collective.axes)
        size_bytes = steps(collective.kind, ranks) * collective.size_bytes / ranks
        moved = Moved(words=size_bytes / value(node).element_size(), size_bytes=size_bytes)
        before, after = self._nearest(node, _arguments), self._nearest(node, _users)
        own = facts(node).path
        if collective.kind == "all_reduce":
            yield next((path for path in (before, after) if path is not None), own), moved.scaled(0.5)
            yield next((path for path in (after, before) if path is not None), own), moved.scaled(0.5)
        else:
            wanted = (before, after) if collective.kind == "reduce_scatter" else (after, before)
            yield next((path for path in wanted if path is not None), own), moved

    def _nearest(self, start: fx.Node, onward: Callable[[fx.Node], Iterable[fx.Node]]) -> str | None:
        """The module of the nearest product among all that a node is made from, or all that is made from it."""
        seen, generation = {start}, [start]
        while generation:
            following = [node for old in generation for node in onward(old)]
            generation = [node for node in dict.fromkeys(following) if node not in seen]
            seen.update(generation)
            for node in generation:
                if node.target in _ROWS and facts(node).path in self.products:
                    return facts(node).path
        return None

    def _groups(self) -> list[tuple[str, ...]]:
        """The modules that share inputs, in the order of the program."""
        sharing: nx.Graph[str] = nx.Graph()
        sharing.add_nodes_from(path for path, placed in self.products.items() if placed)
        for products in self.inputs.values():
            nx.add_path(sharing, [_module(placed) for placed in products])
        order = {path: i for i, path in enumerate(self.products)}
        return [tuple(sorted(group, key=order.__getitem__)) for group in nx.connected_components(sharing)]

    def _product(self, paths: tuple[str, ...], moved: dict[str, Moved]) -> ProductVolume:
        inputs = [(key, placed) for key, placed in self.inputs.items() if _module(placed[0]) in paths]
        shapes = tuple((key.m, sum(placed.shape[2] for placed in products), key.k) for key, products in inputs)
        taken = [self._gradients(path) for path in paths]
        ranks = self.plan.grid.size
        bound_words = sum(
            training_words(
                *shape, ranks, input_gradient=all(i for i, _ in taken), weight_gradient=all(w for _, w in taken)
            )
            for shape in shapes
        )
        return ProductVolume(
            paths=paths,
            shapes=shapes,
            cuts=tuple(dict.fromkeys(str(placed) for path in paths for placed in self.products[path])),
            moved=sum((moved.pop(path, Moved()) for path in paths), Moved()),
            bound_words=bound_words,
        )

    def _gradients(self, path: str) -> tuple[bool, bool]:
        """Whether the gradients of the input and of the weight are taken."""
        behind = self.program.backward
        if behind is None:
            return False, False
        products = [node for node in behind.graph.nodes if _is_product(node) and facts(node).path == path]
        per_call = len(products) / len(self.products[path])
        of_weight = any(
            out.kind == "gradient" and out.target == self.products[path][0].weight for out in behind.outputs
        )
        return per_call >= 1 + of_weight, of_weight or per_call >= 2


def _is_product(node: fx.Node) -> bool:
    """Whether a node is a product; of the chunks of one, the first counts."""
    return node.target in _ROWS and not facts(node).chunk


def _source(node: fx.Node) -> fx.Node:
    """What a tensor was before it was copied, taken apart or communicated."""
    wait = torch.ops._c10d_functional.wait_tensor.default
    while node.target in _MOVES or node.target == wait or facts(node).collective is not None:
        node = node.all_input_nodes[0]
    return node


def _arguments(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def _users(node: fx.Node) -> Iterable[fx.Node]:
    return node.users


def _module(placed: MatmulPlacement) -> str:
    return placed.path.partition("#")[0]


def _described(product: ProductVolume) -> tuple[str, ...]:
    """The cells of a product's line; equal ones of identical layers have equal cells."""
    first, *others = product.paths
    parent = first.rpartition(".")[0]
    names = [first or "the model", *(path.removeprefix(f"{parent}.") for path in others)]
    what = re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", ", ".join(names))
    shapes = Counter(f"m={m} n={n} k={k}" for m, n, k in product.shapes)
    sizes = ", ".join(f"{count} x {text}" if count > 1 else text for text, count in shapes.items())
    return (
        what,
        sizes,
        ", ".join(product.cuts),
        *_amounts(product.moved),
        _bound(product.bound_words, product.moved),
    )


def _amounts(moved: Moved) -> tuple[str, str]:
    return f"{_short(moved.words)} words", f"{_bytes(moved.size_bytes)}"


def _bound(words: float, moved: Moved) -> str:
    share = f" ({100 * words / moved.words:.0f} %)" if moved.words else ""
    return f"at least {_short(words)}{share}"


def _bytes(amount: float) -> str:
    text = _short(amount)
    return f"{text}B" if " " in text else f"{text} B"


def _short(amount: float) -> str:
    """A number of three digits with its prefix: "25.7 M"."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= factor:
            return f"{amount / factor:.3g} {prefix}"
    return f"{amount:.3g}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    texts, amounts = row[:3], row[3:5]
    left = [cell.ljust(width) for cell, width in zip(texts, widths, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(amounts, widths[3:5], strict=True)]
    return "  ".join((*left, *right, row[5])).rstrip()
