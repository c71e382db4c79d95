"""Reading the TOML table of a machine: every entry present, known, of its type, and positive."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from axograph.errors import AxographError


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a TOML file that refuses, by name, what a machine cannot have."""

    where: str
    """The file, for errors."""
    path: str
    """The table's place in the file with a dot at its end, empty at the top."""
    entries: Mapping[str, object]

    @classmethod
    def parse(cls, text: str, *, where: str) -> Table:
        """The top table of a file's text; `AxographError` if it is not TOML."""
        try:
            return cls(where=where, path="", entries=tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise cls(where=where, path="", entries={}).refusal("the text", f"not TOML: {error}", "TOML") from error

    def require(self, names: Iterable[str]) -> None:
        """Refuse a missing entry and an entry that means nothing here."""
        names = tuple(names)
        for name in names:
            if name not in self.entries:
                raise self.refusal(name, "missing", "there")
        for name, value in self.entries.items():
            if name not in names:
                raise self.refusal(name, repr(value), f"left out; this table holds {', '.join(names)}")

    def text(self, name: str) -> str:
        """An entry that is a text."""
        value = self.entries[name]
        if not isinstance(value, str):
            raise self.refusal(name, repr(value), "a text")
        return value

    def number(self, name: str) -> float:
        """An entry that is a positive, finite number."""
        value = self.entries[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.refusal(name, repr(value), "a positive number")
        return float(value)

    def numbers(self, *names: str) -> dict[str, float]:
        """The entries of a table of numbers that has just these."""
        self.require(names)
        return {name: self.number(name) for name in names}

    def count(self, name: str) -> int:
        """An entry that is an integer of at least 1."""
        value = self.entries[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, repr(value), "an integer of at least 1")
        return value

    def table(self, name: str) -> Table:
        """An entry that is a table of one or more entries."""
        value = self.entries[name]
        if not isinstance(value, dict) or not value:
            raise self.refusal(name, repr(value), "a table of one or more entries")
        return Table(where=self.where, path=f"{self.path}{name}.", entries=value)

    def refusal(self, name: str, found: str, wanted: str) -> AxographError:
        """The error for an entry that is not what a machine needs."""
        entry = f"{self.path}{name}"
        return AxographError(
            f"the machine file {self.where} is malformed: {entry}",
            asked=f"a machine from {self.where}",
            given=f"{entry}: {found}",
            rule=f"{entry} must be {wanted}",
            remedy="compare with a file that comes with AxoGraph: axograph/cost_model/machines/perlmutter.toml",
        )
