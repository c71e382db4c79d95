"""Looking inside: what the compiler will do, and what it did."""

from axograph.inspection.check import Finding, Report, check

__all__ = ["Finding", "Report", "check"]
