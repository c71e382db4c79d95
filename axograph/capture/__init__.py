"""Capture: an `nn.Module` and its inputs become a `Program`."""

from axograph.capture.program import Facts, Input, Output, Program, facts
from axograph.capture.structure import Structure
from axograph.capture.trace import capture

__all__ = ["Facts", "Input", "Output", "Program", "Structure", "capture", "facts"]
