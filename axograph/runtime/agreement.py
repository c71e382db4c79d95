"""Agreement: before its first step a program is compared across all ranks, so that none waits for another for ever.

A rank that fails while it compiles tells the others, too: every rank raises, none hangs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from axograph.capture.listing import listing
from axograph.capture.program import Program
from axograph.errors import AgreementError

T = TypeVar("T")

_TOLD = "raised on every rank"
"""The note on an error that all ranks know of already."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What one rank tells the others."""

    failure: str
    program: str = ""
    inputs: str = ""


def agree(program: Program, inputs: Sequence[torch.Tensor]) -> None:
    """Raise `AgreementError` on every rank unless all ranks have this program and these global inputs."""
    text = listing(program)
    reports = _exchange(_Report("", _digest(text.encode()), _digest_tensors(inputs)))
    _raise_failure(reports)
    if any(report.program != reports[0].program for report in reports):
        texts: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(texts, text)
        rank, line, other = _first_difference(texts)
        raise AgreementError(
            f"rank {rank} compiled another program than rank 0",
            asked="one program for all ranks",
            given=f"rank 0:  {line}\nrank {rank}:  {other}",
            rule="all ranks build the same model, and call it in the same way",
            remedy="build the model from the same configuration on every rank, without rank-dependent branches",
        )
    differing = [rank for rank, report in enumerate(reports) if report.inputs != reports[0].inputs]
    if differing:
        raise AgreementError(
            f"rank {differing[0]} passes other inputs than rank 0",
            asked="a call with the same global batch on every rank",
            given=f"inputs that differ on ranks {', '.join(map(str, differing))}",
            rule="every rank passes the whole batch and takes its own part",
            remedy="seed every rank's data loader alike, or broadcast the batch from rank 0",
        )


def made_once(make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank. Inside `shared_failure`: where a rank has failed before, or rank 0 does now,
    every rank raises.
    """
    made, failure = None, None
    if dist.get_rank() == 0:
        try:
            made = make()
        except Exception as error:
            failure = error
    reports = _exchange(_Report(_failure_text(failure) if failure is not None else ""))
    if failure is not None:
        failure.add_note(_TOLD)
        raise failure
    try:
        _raise_failure(reports)
    except AgreementError as error:
        error.add_note(_TOLD)
        raise
    box: list[Any] = [made]
    dist.broadcast_object_list(box, src=0)
    received: T = box[0]
    return received


@contextmanager
def shared_failure() -> Iterator[None]:
    """Where ranks compile together: an error on one is raised on all, instead of leaving the others waiting."""
    try:
        yield
    except Exception as error:
        if _TOLD not in getattr(error, "__notes__", ()):
            _exchange(_Report(_failure_text(error)))
        raise


def _failure_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _raise_failure(reports: Sequence[_Report]) -> None:
    failed = [rank for rank, report in enumerate(reports) if report.failure]
    if failed:
        raise AgreementError(
            f"rank {failed[0]} could not compile the model",
            asked="one program for all ranks",
            given=reports[failed[0]].failure,
            rule="all ranks compile, or none goes on",
            remedy=f"see the error of rank {failed[0]}",
        )


def _exchange(report: _Report) -> list[_Report]:
    reports: list[_Report] = [report] * dist.get_world_size()
    dist.all_gather_object(reports, report)
    return reports


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_tensors(tensors: Sequence[torch.Tensor]) -> str:
    together = hashlib.sha256()
    for tensor in tensors:
        together.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.device.type != "meta":
            together.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return together.hexdigest()


def _first_difference(texts: Sequence[str]) -> tuple[int, str, str]:
    """The first rank whose text is not rank 0's, and the first line that differs."""
    first = texts[0].splitlines()
    for rank, text in enumerate(texts):
        if text != texts[0]:
            lines = text.splitlines()
            for mine, other in zip(first, lines, strict=False):
                if mine != other:
                    return rank, mine, other
            longer = first if len(first) > len(lines) else lines
            extra = longer[min(len(first), len(lines))]
            return (rank, extra, "(nothing)") if longer is first else (rank, "(nothing)", extra)
    raise AssertionError("the texts are equal")
