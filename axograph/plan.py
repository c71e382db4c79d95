"""The plan: for every matmul its placement on the grid, the cost of the whole, and the reasons.

Plans are files, too: `plan_file` has their format, `plan_difference` what two of them differ in, `explanation` what
can be said of one matmul.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from typing import Any

from axograph.cost_model.memory import MemoryEstimate
from axograph.errors import AxographError, PlanError
from axograph.explanation import Explanation, duration
from axograph.grid import AXES, CUT_ORDER, Grid
from axograph.placement import Placement
from axograph.plan_difference import PlanDifference, changes
from axograph.plan_file import Entries, damaged, read, write

SCHEMES = ("axonn", "megatron", "fsdp", "ddp")
"""Classic layouts that the search can be pinned to, for comparison."""

FACTORS = ("m", "k", "n")
"""The dims of a product [m, k] @ [k, n] -> [m, n]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPlacement:
    """Where the product O = I W of a linear layer lies: I is m x k, W is k x n.

    Cutting k leaves O partial until it is reduced; cutting m leaves the gradient of W partial.
    """

    path: str
    """The module, such as "layers.0.mlp.up_proj"."""
    weight: str
    """The parameter that is W, or "" where W is no parameter."""
    m: tuple[str, ...] = ()
    """The axes that cut the rows (tokens)."""
    k: tuple[str, ...] = ()
    """The axes that cut the contracted features."""
    n: tuple[str, ...] = ()
    """The axes that cut the output features."""
    shape: tuple[int, int, int] = (0, 0, 0)
    """The global sizes (m, k, n)."""
    stored: Placement | None = None
    """Where the weight lies between uses."""
    reason: str = ""
    """Why an axis cuts nothing here, or why the layout asked for was not possible."""

    def __str__(self) -> str:
        def cut(name: str, axes: tuple[str, ...]) -> str:
            return f"{name}/{'.'.join(axes)}" if axes else name

        return f"{cut('m', self.m)} {cut('k', self.k)} {cut('n', self.n)}"


def parse_cuts(text: str) -> dict[str, tuple[str, ...]]:
    """The axes that cut each factor named in a text such as "m/data.z k n/x"; a factor without axes is whole.

    Raises `PlanError` at text in another notation.

    >>> parse_cuts("k n/x.y")
    {'k': (), 'n': ('x', 'y')}
    """
    cuts: dict[str, tuple[str, ...]] = {}
    for token in text.split():
        factor, slash, names = token.partition("/")
        axes = tuple(names.split(".")) if slash else ()
        if factor not in FACTORS or factor in cuts:
            raise _not_cuts(text, f"{factor!r}, which is not m, k or n named once")
        unknown = [axis for axis in axes if axis not in CUT_ORDER]
        if unknown:
            raise _not_cuts(text, f"{unknown[0]!r}, which is no axis")
        taken = [axis for known in (*cuts.values(), axes) for axis in known]
        twice = [axis for axis in taken if taken.count(axis) > 1]
        if twice:
            raise _not_cuts(text, f"axis {twice[0]} twice")
        if list(axes) != sorted(axes, key=CUT_ORDER.index):
            raise _not_cuts(text, f"{names!r}: a cut goes in the order {', '.join(CUT_ORDER)}, outermost first")
        cuts[factor] = axes
    if not cuts:
        raise _not_cuts(text, "nothing")
    return cuts


def _not_cuts(text: str, given: str) -> PlanError:
    return PlanError(
        f"not a placement of a matmul: {text!r}",
        asked=repr(text),
        given=given,
        rule="factors m (rows), k (contracted), n (output features), each with the axes that cut it: m/data.z k/y n/x; "
        "a factor without axes is whole, one that is not named is free",
        remedy='"n/x k/y", "k n/x" or "colwise"',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Mapping[str, MatmulPlacement]):
    """The placements of all matmuls of a model, by module path.

    A module that multiplies more than once has its further products under `path#2`, `path#3`, ...
    """

    grid: Grid
    scheme: str | None
    matmuls: dict[str, MatmulPlacement]
    parameters: dict[str, Placement]
    """Where each parameter is stored."""
    cost_s: float
    """Seconds of a step under the cost model, nothing overlapped."""
    certificate: str
    """"optimal", or what is known of the distance to the optimum."""
    memory: MemoryEstimate | None = None
    """The most that one rank holds during a step."""
    remat: str = "none"
    """What backward recomputes for that, beside the checkpointed calls of the model: "none", "block" or "auto"."""
    notes: tuple[str, ...] = field(default=())
    """What else was decided for the user."""
    explainer: Callable[[str], Explanation] | None = field(default=None, compare=False, repr=False)
    """Explains one matmul from the search that made the plan; None for a plan that was loaded."""

    def __getitem__(self, path: str) -> MatmulPlacement:
        return self.matmuls[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.matmuls)

    def __len__(self) -> int:
        return len(self.matmuls)

    def __getstate__(self) -> list[Any]:
        """All but the explainer, which holds the whole program."""
        return [None if f.name == "explainer" else getattr(self, f.name) for f in fields(self)]

    def __str__(self) -> str:
        header = f"plan on grid {self.grid}"
        if self.scheme:
            header += f", scheme {self.scheme}"
        header += f": {duration(self.cost_s)} a step before overlap, {self.certificate}"
        if self.memory:
            header += f"\n  a rank holds at most {self.memory}"
            header += f", with remat={self.remat!r}" if self.remat != "none" else ""
        width = max((len(path) for path in self.matmuls), default=0)
        lines = [header]
        for path, placed in self.matmuls.items():
            stored = f"  W stored {placed.stored.simplified(self.grid)}" if placed.stored else ""
            reason = f"  ({placed.reason})" if placed.reason else ""
            lines.append(f"  {path:<{width}}  {placed!s:<24}{stored}{reason}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file, as JSON with a line for each matmul and parameter; an old file is replaced."""
        write(
            path,
            {
                "grid": {**{axis: self.grid[axis] for axis in AXES}, "order": list(self.grid.order)},
                "scheme": self.scheme or "",
                "cost_s": self.cost_s,
                "certificate": self.certificate,
                "memory": asdict(self.memory) if self.memory else {},
                "notes": list(self.notes),
                "matmuls": {path: _matmul_entries(placed) for path, placed in self.matmuls.items()},
                "parameters": {name: str(placed) for name, placed in self.parameters.items()},
            },
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan that was saved; `PlanError`, naming the entry, where the file does not hold one.

        `parallelize(..., plan=plan)` reproduces it. By itself it knows nothing of the model: see `explain`.
        """
        entries = read(path)
        parameters = entries.table("parameters")
        return cls(
            grid=_grid(entries.table("grid")),
            scheme=entries.take("scheme", str) or None,
            matmuls={path: _matmul(path, table) for path, table in entries.tables("matmuls")},
            parameters={name: _placement(parameters, name) for name in parameters.found},
            cost_s=entries.take("cost_s", float),
            certificate=entries.take("certificate", str),
            memory=_memory(entries.table("memory")),
            notes=entries.texts("notes"),
        )

    def diff(self, other: Plan) -> PlanDifference:
        """What the other plan has differently."""

        def settings(plan: Plan) -> dict[str, str]:
            return {"grid": str(plan.grid), "order": ".".join(plan.grid.order), "scheme": plan.scheme or "free"}

        def stored(plan: Plan) -> dict[str, str]:
            return {name: str(placed.simplified(plan.grid)) for name, placed in plan.parameters.items()}

        def placed(plan: Plan) -> dict[str, str]:
            return {path: str(placement) for path, placement in plan.items()}

        return PlanDifference(
            settings=changes(settings(self), settings(other)),
            matmuls=changes(placed(self), placed(other)),
            parameters=changes(stored(self), stored(other)),
            before_s=self.cost_s,
            after_s=other.cost_s,
        )

    # -- reasons ------------------------------------------------------------------------------------------------------

    def explain(self, path: str) -> Explanation:
        """Why a matmul lies where it lies: its moves, the runner-up and what it would cost, what was ruled out.

        The search is solved once more, without the placement chosen, when this is called. A plan that was loaded says
        what it knows. Raises `PlanError`, naming similar paths, for a path that is no matmul of the plan.
        """
        if path not in self.matmuls:
            raise _no_matmul(path, self.matmuls)
        if self.explainer is not None:
            return self.explainer(path)
        placed = self.matmuls[path]
        return Explanation(
            path=path,
            placement=str(placed),
            shape=placed.shape,
            weight=placed.weight,
            stored=placed.stored.simplified(self.grid) if placed.stored is not None else None,
            plan_cost_s=self.cost_s,
            unknown="moves, runner-up and what was ruled out, which follow from the model; "
            "parallelize(model, grid, plan=plan, sample_inputs=...).plan.explain(path) has them",
        )


def similar(path: str, paths: Iterable[str]) -> str:
    """The paths that one might have meant, most similar first, for an error."""
    every = list(paths)
    end = path.rpartition(".")[2]
    near = [known for known in every if end and known.rpartition(".")[2] == end]
    near += difflib.get_close_matches(path, every, n=3, cutoff=0.5)
    shown = list(dict.fromkeys(near or every))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "") if shown else "none"


def _no_matmul(path: str, matmuls: Iterable[str]) -> PlanError:
    return PlanError(
        f"the plan has no matmul {path!r}",
        asked=f"plan.explain({path!r})",
        given=f"the matmuls {similar(path, matmuls)}",
        rule="a matmul has the path of its module in the model, and #2, #3, ... where the module has several",
        remedy="one of these, or print(plan) for all",
    )


def _matmul_entries(placed: MatmulPlacement) -> dict[str, Any]:
    return {
        "placement": str(placed),
        "shape": list(placed.shape),
        "weight": placed.weight,
        "stored": str(placed.stored) if placed.stored is not None else "",
        "reason": placed.reason,
    }


def _matmul(path: str, entries: Entries) -> MatmulPlacement:
    shape = entries.take("shape", list)
    if len(shape) != 3 or not all(type(size) is int for size in shape):
        raise damaged(entries.where, f"shape = {shape!r}", "a shape is the sizes [m, k, n]")
    text = entries.take("placement", str)
    try:
        cuts = parse_cuts(text)
    except PlanError as error:
        raise damaged(entries.where, f"placement = {text!r}: {error.given}", error.rule) from error
    return MatmulPlacement(
        path=path,
        weight=entries.take("weight", str),
        m=cuts.get("m", ()),
        k=cuts.get("k", ()),
        n=cuts.get("n", ()),
        shape=(shape[0], shape[1], shape[2]),
        stored=_placement(entries, "stored") if entries.take("stored", str) else None,
        reason=entries.take("reason", str),
    )


def _placement(entries: Entries, name: str) -> Placement:
    text = entries.take(name, str)
    try:
        return Placement.parse(text)
    except AxographError as error:
        raise damaged(entries.where, f"{name} = {text!r}: {error.given}", error.rule) from error


def _memory(entries: Entries) -> MemoryEstimate | None:
    if not entries.found:
        return None
    return MemoryEstimate(**{kind.name: entries.take(kind.name, float) for kind in fields(MemoryEstimate)})


def _grid(entries: Entries) -> Grid:
    x, y, z, data = (entries.take(axis, int) for axis in AXES)
    try:
        return Grid(x, y, z, data, entries.texts("order"))
    except AxographError as error:
        raise damaged(entries.where, error.asked, error.rule) from error
