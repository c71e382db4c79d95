"""The errors that users see. Each says what was asked, what was given, which rule broke, and what to try.

Everything a user can cause raises an `AxographError`; what only this package can break is an `assert`.
"""

from __future__ import annotations

from functools import partial
from typing import Any


class AxographError(ValueError):
    """An error in four parts: asked, given, rule, remedy.

    >>> print(AxographError("cannot do it", asked="a", given="b", rule="c", remedy="d"))
    cannot do it
      asked  a
      given  b
      rule   c
      try    d
    """

    def __init__(self, summary: str, *, asked: str, given: str, rule: str, remedy: str) -> None:
        self.summary = summary
        self.asked = asked
        self.given = given
        self.rule = rule
        self.remedy = remedy
        parts = (("asked", asked), ("given", given), ("rule", rule), ("try", remedy))
        lines = [f"  {label:<6} {_indented(text)}" for label, text in parts]
        super().__init__("\n".join([summary, *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {"asked": self.asked, "given": self.given, "rule": self.rule, "remedy": self.remedy}
        return partial(type(self), **parts), (self.summary,)


class GridError(AxographError):
    """A grid that is malformed, does not match the world size, or cuts nothing in the model."""


class PlacementError(AxographError):
    """A placement that cannot be written down, or that a tensor cannot have."""


class PlanError(AxographError):
    """A scheme or a constraint on the sharding search that does not exist or cannot be met."""


class CaptureError(AxographError):
    """A model that cannot be captured as one graph."""


class InputError(AxographError):
    """Inputs of a call that the model or the compiled program does not accept."""


class AgreementError(AxographError):
    """Ranks that disagree about the program or the inputs; raised on every rank."""


class UnsupportedError(AxographError):
    """Something that cannot be done right yet, refused before it runs."""


class ScheduleError(AxographError):
    """A schedule that does not compute what the program did, or not safely: a fault of the pass that made it."""


def _indented(text: str) -> str:
    return text.replace("\n", "\n         ")
