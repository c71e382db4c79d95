"""The public surface, listed: a name that comes or goes is a decision, and shows up here."""

import axograph


def test_the_public_names_are_these() -> None:
    assert sorted(axograph.__all__) == [
        "AgreementError",
        "AxographError",
        "CaptureError",
        "Grid",
        "GridError",
        "InputError",
        "MatmulPlacement",
        "ParallelModule",
        "Placement",
        "PlacementError",
        "Plan",
        "PlanError",
        "UnsupportedError",
        "check",
        "parallelize",
    ]


def test_every_public_name_exists_and_is_documented() -> None:
    assert all(getattr(axograph, name).__doc__ for name in axograph.__all__)
