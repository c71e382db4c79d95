"""Codegen: from a split program to the module that the user calls."""

from axograph.codegen.module import ParallelModule

__all__ = ["ParallelModule"]
