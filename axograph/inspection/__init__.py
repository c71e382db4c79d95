"""Looking inside: what the compiler will do, and what it did."""

from axograph.inspection.check import Finding, Report, check
from axograph.inspection.repeated import Repeated, repeated
from axograph.inspection.volume import Moved, ProductVolume, Volume, volume

__all__ = ["Finding", "Moved", "ProductVolume", "Repeated", "Report", "Volume", "check", "repeated", "volume"]
