"""The user's plan: what its entries ask of which matmuls; refused by name where they cannot be met.

    plan={"layers.*.mlp.up_proj": "n/x k/y", "*.q_proj": "colwise"}

A pattern is a module's path from the root of the model or, where nothing there has it, from one of the root's children,
as Hugging Face's plans leave out `model.`; `*` stands for any text. What is asked is in the notation in which plans are
printed, or one of Hugging Face's words. A whole plan, loaded or of another module, pins every matmul and parameter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike

import torch
from torch import fx, nn

from axograph.capture.program import facts
from axograph.errors import PlanError
from axograph.grid import Grid
from axograph.passes.sharding.rule import Strategy
from axograph.passes.sharding.strategies import Choice, Cut, Options
from axograph.placement import Placement
from axograph.plan import MatmulPlacement, Plan, parse_cuts, similar

COLUMNS, ROWS, WHOLE = "n/x", "k/x", "k n"

WORDS: Mapping[str, str] = {
    "colwise": COLUMNS,
    "packed_colwise": COLUMNS,
    "colwise_gather_output": COLUMNS,
    "rowwise": ROWS,
    "packed_rowwise": ROWS,
    "rowwise_split_input": ROWS,
    "replicate": WHOLE,
    "replicated": WHOLE,
    "replicated_with_grad_allreduce": WHOLE,
}
"""Hugging Face's words for the layout of a linear layer (`transformers`, `base_model_tp_plan`). Whether an output is
gathered, an input is split and a gradient is reduced follows from the placements, and is the search's to decide."""

STORED: Mapping[str, int] = {"embedding_rowwise": 0, "embedding_colwise": 1}
"""Hugging Face's words for an embedding: which dim of its weight, [vocabulary, features], is stored cut by x."""

UserPlan = Mapping[str, str] | Plan | str | PathLike[str]
"""Entries by pattern, a whole plan, or the file of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the user's plan, or one matmul of a whole plan."""

    pattern: str
    text: str
    cuts: tuple[tuple[str, tuple[str, ...]], ...]
    """The factors that are named, each with the axes of more than one rank that cut it."""
    whole_plan: MatmulPlacement | None = None
    """The matmul, where a whole plan was given: the pattern is its path."""

    @classmethod
    def read(cls, pattern: str, text: object, grid: Grid) -> Entry:
        """Read an entry; `PlanError`, naming it, where it is in no known notation."""
        if not isinstance(text, str):
            raise _unreadable(pattern, repr(text), f"{type(text).__name__} instead of text")
        try:
            cuts = {} if text in STORED else parse_cuts(WORDS.get(text, text))
        except PlanError as error:
            raise _unreadable(pattern, text, error.given) from error
        real = tuple((factor, tuple(axis for axis in axes if grid[axis] > 1)) for factor, axes in cuts.items())
        return cls(pattern=pattern, text=text, cuts=real)

    @classmethod
    def of(cls, placed: MatmulPlacement) -> Entry:
        """An entry that pins a matmul to where a plan has it."""
        cuts = (("m", placed.m), ("k", placed.k), ("n", placed.n))
        return cls(pattern=placed.path, text=str(placed), cuts=cuts, whole_plan=placed)

    def __str__(self) -> str:
        return f'plan["{self.pattern}"] = "{self.text}"'

    @property
    def says_whole(self) -> bool:
        """Whether it is a word that keeps weights whole: a module without a matmul does so anyway."""
        return WORDS.get(self.text) == WHOLE

    def matched(self, paths: Collection[str]) -> list[str]:
        """Which of these paths the entry names. All products of a module, or the second as `path#2`."""
        if self.whole_plan is not None:
            return [self.pattern] if self.pattern in paths else []
        pattern = re.compile(".*".join(map(re.escape, self.pattern.split("*"))))

        def names(path: str) -> bool:
            return bool(pattern.fullmatch(path) or pattern.fullmatch(path.partition("#")[0]))

        return [p for p in paths if names(p)] or [p for p in paths if names(p.partition(".")[2])]


@dataclass(frozen=True, slots=True)
class Pin:
    """What the user's plan says of one matmul."""

    cuts: tuple[tuple[str, tuple[str, ...]], ...]
    """The factors that are decided, each with the axes that cut it and no others."""
    asked: tuple[str, ...]
    """The entries that say so; none where a whole plan does."""

    def __str__(self) -> str:
        return " and ".join(self.asked) or "the plan that was given"

    def holds(self, strategy: Strategy) -> bool:
        """Whether a strategy of the matmul is as asked."""
        return all(strategy.axes(factor) == axes for factor, axes in self.cuts)

    def strategies(self, options: Options, allowed: Mapping[str, Sequence[Choice]], grid: Grid) -> list[Strategy]:
        """The strategies of the matmul that are as asked: of those usually allowed if possible, or of all."""
        usual = {axis: [choice for choice in choices if self._may(axis, choice)] for axis, choices in allowed.items()}
        every: list[Choice] = [None, *(Cut(unit) for unit in options.units)]
        wide = {axis: [choice for choice in every if self._may(axis, choice)] for axis in allowed}
        some = {axis: choices or wide[axis] for axis, choices in usual.items()}
        return options.strategies(some, grid) or options.strategies(wide, grid)

    def _may(self, axis: str, choice: Choice) -> bool:
        """Whether an axis may do so at the matmul."""
        factor = choice.unit.factor if isinstance(choice, Cut) else None
        owner = next((named for named, axes in self.cuts if axis in axes), None)
        if owner is not None:
            return factor == owner
        return factor not in {named for named, _ in self.cuts}

    def refusal(self, node: fx.Node, options: Options, grid: Grid) -> PlanError:
        """The error where no strategy is as asked: some factor is not divided by its axes."""
        about = facts(node)
        for factor, axes in self.cuts:
            units = [unit for unit in options.units if unit.factor == factor]
            if not options.strategies({axis: [Cut(unit) for unit in units] for axis in axes}, grid):
                break
        sizes = " ".join(f"{name}={size}" for name, size in options.rule.sizes.items())
        size = f"{factor}={options.rule.sizes[factor]}"
        if len(units) > 1:
            size += f", which the model divides into {' '.join(str(unit.size) for unit in units)}"
        ranks = " ".join(f"{axis}={grid[axis]}" for axis in axes)
        return PlanError(
            f"{self} cannot be met at {about.path!r}",
            asked=f"{self} on grid {grid}",
            given=f"{about.path or 'the model'}: {sizes}{f' at {about.source}' if about.source else ''}",
            rule=f"axes cut a factor evenly, or with little padding: {ranks} does not so divide {size}",
            remedy=f"leave {factor} out of the entry, or cut it by other axes",
        )

    def contradiction(self, node: fx.Node, scheme: str, layouts: Iterable[Strategy]) -> PlanError:
        """The error where the scheme has no layout that is as asked."""
        texts = dict.fromkeys(" ".join(_cut_text(f, s.axes(f)) for f in ("m", "k", "n")) for s in layouts)
        return PlanError(
            f"{self} contradicts the scheme {scheme!r}",
            asked=f"{self} and scheme={scheme!r}",
            given=f"{facts(node).path!r}, which that scheme places as {' or '.join(texts)}",
            rule="entries choose among the layouts that the scheme allows",
            remedy="scheme=None, or one of those placements",
        )


def _cut_text(factor: str, axes: tuple[str, ...]) -> str:
    return f"{factor}/{'.'.join(axes)}" if axes else factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What the user asks of the search besides the grid."""

    scheme: str | None = None
    entries: tuple[Entry, ...] = ()
    stored: Mapping[str, Placement] = field(default_factory=dict)
    """Where parameters must be stored."""

    @classmethod
    def of(cls, plan: UserPlan | None, grid: Grid, scheme: str | None, model: nn.Module) -> Constraints:
        """Read the user's plan for a model; `PlanError` where it does not fit the model, the grid or the scheme."""
        if plan is None:
            return cls(scheme=scheme)
        if isinstance(plan, str | PathLike):
            plan = Plan.load(plan)
        modules = [name for name, _ in model.named_modules()]
        if isinstance(plan, Plan):
            _same_setting(plan, grid, scheme)
            _same_parameters(plan, model)
            entries = tuple(Entry.of(placed) for placed in plan.values())
            missing = [e.pattern for e in entries if e.pattern.partition("#")[0] not in modules]
            if missing:
                raise _other_model(
                    f"the matmul {missing[0]!r}", f"a model with the modules {similar(missing[0], modules)}"
                )
            return cls(scheme=plan.scheme, entries=entries, stored=plan.parameters)
        if not isinstance(plan, Mapping):
            raise _unreadable("...", repr(plan), f"a plan that is a {type(plan).__name__}")
        entries = tuple(Entry.read(pattern, text, grid) for pattern, text in plan.items())
        for entry in entries:
            if not entry.matched([*modules, *(f"{m}#2" for m in modules if "#" in entry.pattern)]):
                raise _no_match(entry, "module", modules)
        return cls(scheme=scheme, entries=entries)


def find_pins(
    entries: Sequence[Entry], matmuls: Mapping[str, fx.Node], options: Mapping[fx.Node, Options]
) -> tuple[dict[fx.Node, Pin], tuple[str, ...]]:
    """What the entries say of each matmul, and notes on what they say nothing about.

    Raises `PlanError` where an entry names no matmul, contradicts another one, or was made for other sizes.
    """
    by_path: dict[str, list[Entry]] = {}
    notes = []
    for entry in entries:
        paths = entry.matched(matmuls)
        if entry.text in STORED:
            continue
        if not paths and entry.whole_plan is None and not entry.says_whole:
            raise _no_match(entry, "matmul", matmuls)
        if not paths:
            notes.append(f"{entry}: no matmul of this call has this name")
        for path in paths:
            by_path.setdefault(path, []).append(entry)
    pins = {}
    for path, asked in by_path.items():
        node = matmuls[path]
        said = tuple(str(entry) for entry in asked if entry.whole_plan is None)
        pins[node] = Pin(_together(path, [_for_sizes(entry, options[node]) for entry in asked]), said)
    if any(entry.whole_plan is not None for entry in entries):
        notes += [f"the plan that was given has nothing on {path}: searched" for path in matmuls if path not in by_path]
    return pins, tuple(notes)


def find_stored(entries: Sequence[Entry], parameters: Iterable[str], grid: Grid) -> dict[str, Entry]:
    """The entries that say how an embedding is stored, by the parameter; `PlanError` where one names no weight."""
    weights = {name.removesuffix(".weight"): name for name in parameters if name.endswith(".weight")}
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.text in STORED:
            paths = entry.matched(weights)
            if not paths:
                raise _no_match(entry, "embedding", weights)
            found |= {weights[path]: entry for path in paths if grid["x"] > 1}
    return found


def stored_as_asked(name: str, entry: Entry, placements: list[Placement], grid: Grid) -> list[Placement]:
    """The ways to store a weight, of these, in which x cuts the dim that an entry says; `PlanError` if none does."""
    dim = STORED[entry.text]
    held = [p for p in placements if dim < len(p.dims) and any("x" in sub.axes for sub in p.dims[dim])]
    if not held:
        raise PlanError(
            f"{entry} cannot be met at {name!r}",
            asked=f"{entry} on grid {grid}",
            given=f"{name} of shape {list(placements[0].shape)}",
            rule=f"x={grid['x']} cuts dim {dim} of the weight, evenly or with little padding, as the scheme allows",
            remedy="leave the entry out",
        )
    return held


def _together(path: str, entries: Sequence[Entry]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What several entries say of one matmul."""
    said: dict[str, tuple[tuple[str, ...], Entry]] = {}
    for entry in entries:
        for factor, axes in entry.cuts:
            before = said.get(factor)
            if before is not None and before[0] != axes:
                raise _two_entries(path, before[1], entry)
            said.setdefault(factor, (axes, entry))
    for factor, (axes, entry) in said.items():
        for other, (others, earlier) in said.items():
            if factor != other and set(axes) & set(others):
                raise _two_entries(path, earlier, entry)
    return tuple((factor, said[factor][0]) for factor in ("m", "k", "n") if factor in said)


def matmul_names(nodes: Iterable[fx.Node]) -> dict[str, fx.Node]:
    """The forward products, by module path; the further ones of a module under `path#2`, `path#3`, ..."""
    found: dict[str, fx.Node] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        about = facts(node)
        if node.target is torch.ops.aten.mm.default and about.phase == "forward":
            count = counts[about.path] = counts.get(about.path, 0) + 1
            found[about.path if count == 1 else f"{about.path}#{count}"] = node
    return found


# -- refusals ---------------------------------------------------------------------------------------------------------


def _unreadable(pattern: str, text: str, given: str) -> PlanError:
    return PlanError(
        f"plan[{pattern!r}] = {text!r} is not a placement",
        asked=f"plan[{pattern!r}] = {text!r}",
        given=given,
        rule="an entry names factors m (rows), k (contracted), n (output features) with the axes that cut them, "
        f"m/data.z k/y n/x, or is one of the words {', '.join((*WORDS, *STORED))}",
        remedy='"n/x k/y"; "k n/x" to keep k whole; a factor that is not named is free',
    )


def _no_match(entry: Entry, what: str, paths: Iterable[str]) -> PlanError:
    return PlanError(
        f"{entry} names no {what}",
        asked=str(entry),
        given=f"a model with the {what}s {similar(entry.pattern.replace('*.', ''), [p for p in paths if p])}",
        rule="an entry places the matmuls of the modules whose paths it names; * stands for any text",
        remedy="correct the path, or leave the entry out",
    )


def _two_entries(path: str, first: Entry, second: Entry) -> PlanError:
    return PlanError(
        f"two entries of the plan contradict each other at {path!r}",
        asked=f"{first}\n{second}",
        given=f"{path!r}, which both name",
        rule="an axis cuts one factor of a matmul, and a factor is cut by the axes of one entry",
        remedy="make one of the patterns narrower, or let both say the same",
    )


def _same_setting(plan: Plan, grid: Grid, scheme: str | None) -> None:
    if (plan.grid.shape, plan.grid.order) != (grid.shape, grid.order):
        raise PlanError(
            "the plan was made for another grid",
            asked=f"a plan on grid {plan.grid} (order {'.'.join(plan.grid.order)})",
            given=f"grid {grid} (order {'.'.join(grid.order)})",
            rule="a plan is reproduced on the grid that it was made for",
            remedy="grid=plan.grid, or entries for some matmuls: plan={'layers.*.mlp.up_proj': 'n/x'}",
        )
    if scheme not in (None, plan.scheme):
        raise PlanError(
            f"the plan was made under scheme={plan.scheme!r}",
            asked=f"scheme={scheme!r} and a whole plan",
            given=f"a plan that was made under scheme={plan.scheme!r}",
            rule="a plan is reproduced under the scheme that it was made with",
            remedy="leave scheme out",
        )


def _same_parameters(plan: Plan, model: nn.Module) -> None:
    known = dict(model.named_parameters(remove_duplicate=False))
    for name, placed in plan.parameters.items():
        if name not in known:
            raise _other_model(f"the parameter {name!r}", f"a model with the parameters {similar(name, known)}")
        if placed.shape != tuple(known[name].shape):
            raise _other_model(f"{name} stored as {placed}", f"{name} of shape {list(known[name].shape)}")


def unstorable(name: str, placed: Placement, grid: Grid) -> PlanError:
    """The error for a parameter that cannot be stored as a plan has it."""
    return PlanError(
        f"{name} cannot be stored as the plan has it",
        asked=f"{name} stored as {placed}",
        given=f"grid {grid}",
        rule="x, y and z may cut a stored parameter, at most one dim each, into parts that a DTensor can have; "
        "data holds copies",
        remedy="another placement of this parameter, or entries for some matmuls: plan={'layers.*.up_proj': 'n/x'}",
    )


def _for_sizes(entry: Entry, options: Options) -> Entry:
    """The entry at a matmul; a whole plan holds for other batches, too, whose rows are free."""
    if entry.whole_plan is None:
        return entry
    m, k, n = entry.whole_plan.shape
    sizes = options.rule.sizes
    if (k, n) != (sizes["k"], sizes["n"]):
        raise _other_model(f"{entry.pattern} with k={k} n={n}", f"{entry.pattern} with k={sizes['k']} n={sizes['n']}")
    return entry if m == sizes["m"] else replace(entry, cuts=tuple(cut for cut in entry.cuts if cut[0] != "m"))


def _other_model(asked: str, given: str) -> PlanError:
    return PlanError(
        "the plan was made for another model",
        asked=f"a plan with {asked}",
        given=given,
        rule="a plan is reproduced on a model with the same matmuls and parameters",
        remedy="the plan of this model, or entries for some matmuls: plan={'layers.*.mlp.up_proj': 'n/x'}",
    )
