"""Errors: four parts in a fixed layout, one family, and they survive the way between processes."""

import pickle

import pytest

from axograph import errors
from axograph.errors import AxographError, GridError

SUBCLASSES = [
    errors.AgreementError,
    errors.CaptureError,
    errors.GridError,
    errors.InputError,
    errors.PlacementError,
    errors.PlanError,
    errors.ScheduleError,
    errors.UnsupportedError,
]


def test_an_error_prints_its_four_parts_under_its_summary() -> None:
    error = GridError("too many ranks", asked="grid=(2, 1, 1, 1)", given="1 process", rule="2 = 1", remedy="one rank")
    assert str(error).splitlines() == [
        "too many ranks",
        "  asked  grid=(2, 1, 1, 1)",
        "  given  1 process",
        "  rule   2 = 1",
        "  try    one rank",
    ]
    parts = (error.summary, error.asked, error.given, error.rule, error.remedy)
    assert parts == ("too many ranks", "grid=(2, 1, 1, 1)", "1 process", "2 = 1", "one rank")


def test_the_lines_of_a_part_stay_in_its_column() -> None:
    error = AxographError("no", asked="first\nsecond", given="g", rule="r", remedy="t")
    assert str(error).splitlines()[1:3] == ["  asked  first", "         second"]


def test_every_error_of_the_module_is_in_the_family_and_a_value_error() -> None:
    found = [kind for kind in vars(errors).values() if getattr(kind, "__module__", None) == errors.__name__]
    kinds = [kind for kind in found if isinstance(kind, type)]
    assert sorted(kinds, key=lambda kind: kind.__name__) == sorted(
        [AxographError, *SUBCLASSES], key=lambda kind: kind.__name__
    )
    assert all(issubclass(kind, AxographError) for kind in kinds)
    assert issubclass(AxographError, ValueError)


def test_no_part_can_be_left_out() -> None:
    with pytest.raises(TypeError, match="remedy"):
        AxographError("no", asked="a", given="g", rule="r")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_an_error_can_be_sent_to_another_process(kind: type[AxographError]) -> None:
    error = kind("no", asked="a", given="g", rule="r", remedy="t")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.remedy == "t"
