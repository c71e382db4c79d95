"""Plan files: JSON that a person can read, edit and compare.

    {
      "format": "axograph plan",
      "version": 1,
      "grid": {"x": 2, "y": 2, "z": 2, "data": 1, "order": ["x", "y", "z", "data"]},
      ...
      "matmuls": {
        "layers.0.mlp.up": {"placement": "m/z k/y n/x", "shape": [32, 64, 128], ...},

Here are the container and its faults; what a plan holds is `Plan`'s business.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from axograph.errors import PlanError

FORMAT = "axograph plan"
VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entries:
    """A table of a plan file, and where it is."""

    found: Mapping[str, Any]
    where: str

    def take(self, name: str, kind: type[T]) -> T:
        """The entry of this name; `PlanError` where there is none, or one of another type."""
        value = self.found.get(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            given = f"{name} = {value!r}" if name in self.found else f"no entry {name!r}"
            raise damaged(self.where, given, f"{name!r} is a {_KINDS.get(kind, kind.__name__)}")
        return value

    def table(self, name: str) -> Entries:
        """The table of this name."""
        return Entries(self.take(name, dict), f"{self.where}, {name}")

    def tables(self, name: str) -> Iterator[tuple[str, Entries]]:
        """The tables in the table of this name, by their own names."""
        inside = self.table(name)
        for key in inside.found:
            yield key, Entries(inside.take(key, dict), f"{self.where}, {name} {key!r}")

    def texts(self, name: str) -> tuple[str, ...]:
        """The list of texts of this name."""
        values = self.take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise damaged(self.where, f"{name} = {values!r}", f"{name!r} is a list of texts")
        return tuple(values)


_KINDS = {str: "text", dict: "table", list: "list", int: "whole number", float: "number"}


def read(path: str | os.PathLike[str]) -> Entries:
    """The entries of a plan file; `PlanError` at a file that is none, is damaged or of a later version."""
    where = os.fspath(path)
    try:
        loaded = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _no_plan(where, error.strerror or str(error)) from error
    except ValueError as error:
        raise _no_plan(where, f"no JSON: {error}") from error
    if not isinstance(loaded, dict) or loaded.get("format") != FORMAT:
        raise _no_plan(where, f'JSON without "format": "{FORMAT}"')
    entries = Entries(loaded, where)
    version = entries.take("version", int)
    if version != VERSION:
        raise damaged(where, f"version {version}", f"this release reads version {VERSION}")
    return entries


def write(path: str | os.PathLike[str], entries: Mapping[str, Any]) -> None:
    """Write a plan file, all of it or nothing: a reader never sees half of one."""
    target = Path(path)
    text = _text({"format": FORMAT, "version": VERSION, **entries})
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _text(entries: Mapping[str, Any]) -> str:
    """JSON with one line for each entry of a large table."""
    lines = []
    for name, value in entries.items():
        if isinstance(value, dict) and name != "grid":
            inside = ",\n".join(f"    {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items())
            lines.append(f"  {json.dumps(name)}: {{\n{inside}\n  }}" if value else f"  {json.dumps(name)}: {{}}")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def damaged(where: str, given: str, rule: str) -> PlanError:
    """The error for an entry that is not what it should be."""
    return PlanError(
        f"the plan file {where.partition(',')[0]} is damaged",
        asked=f"the entries of {where}",
        given=given,
        rule=rule,
        remedy="correct the entry, or save the plan again with plan.save(path)",
    )


def _no_plan(where: str, given: str) -> PlanError:
    return PlanError(
        f"{where} is no plan file",
        asked=f"the plan in {where}",
        given=given,
        rule="a plan file is what Plan.save writes",
        remedy="pm.plan.save(path) on a module that has compiled, then Plan.load(path)",
    )
