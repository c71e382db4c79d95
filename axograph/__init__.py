"""AxoGraph compiles an unmodified `nn.Module` into one that trains on a four-dimensional grid of ranks."""

from axograph.api import parallelize
from axograph.codegen import ParallelModule
from axograph.errors import (
    AgreementError,
    AxographError,
    CaptureError,
    GridError,
    InputError,
    PlacementError,
    PlanError,
    UnsupportedError,
)
from axograph.grid import Grid
from axograph.inspection import check
from axograph.placement import Placement
from axograph.plan import MatmulPlacement, Plan

__all__ = [
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
