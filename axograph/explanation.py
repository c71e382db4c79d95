"""What can be said of the place of one matmul: what it communicates, what came second, and what was ruled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from axograph.cost_model.memory import readable
from axograph.placement import Placement

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step that brings a tensor of a matmul from where it lies to where it is needed."""

    phase: Phase
    tensor: str
    """Which tensor of O = I W it is: "I", "W", "O", or in backward "dO", "I", "W", "dI", "dW"."""
    kind: str
    """The collective, such as "all_gather"; "slice" for a step that communicates nothing; "held" for what forward
    brought here and keeps for backward."""
    axes: tuple[str, ...]
    """The axes that its group spans."""
    size_bytes: float
    """Bytes of the larger side on one rank, or those held; 0 for a slice."""
    cost_s: float
    users: int = 1
    """The number of operators that take the tensor as this step leaves it: they share it."""
    summed: bool = False
    """Whether the tensor was added to others before, and the step reduces all of them at once."""

    def __str__(self) -> str:
        shared = (
            f"  for {self.users} operators" if self.users > 1 else "  with what it is added to" if self.summed else ""
        )
        moved = f"{readable(self.size_bytes):>10}" if self.size_bytes else f"{'':>10}"
        return f"{self.tensor:<3} {self.kind:<14} {'.'.join(self.axes):<10} {moved} {duration(self.cost_s):>10}{shared}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """An axis and a factor of a matmul that it may not cut."""

    axis: str
    factor: str
    why: str

    def __str__(self) -> str:
        return f"{self.axis} on {self.factor}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a matmul lies where it lies. Print it, or read its fields."""

    path: str
    placement: str
    """Where the matmul lies, as "m/data.z k/y n/x"."""
    shape: tuple[int, int, int]
    """The global sizes (m, k, n)."""
    weight: str
    stored: Placement | None
    """Where the weight lies between uses."""
    plan_cost_s: float
    """Seconds of a step under the whole plan, nothing overlapped."""
    together: tuple[str, ...] = ()
    """The same matmul of identical layers: they are decided together with this one."""
    compute_s: float | None = None
    """Seconds that one rank computes, in forward and backward products together; None where it is not known."""
    moves: tuple[Move, ...] = ()
    """The steps around the matmul, in the order in which they run."""
    runner_up: str | None = None
    """The placement of this matmul in the best plan that places it differently; None where there is no other."""
    runner_up_cost_s: float | None = None
    """Seconds of a step under that plan."""
    runner_up_certificate: str = ""
    """"optimal", or what is known of that plan's distance to the best one."""
    ruled_out: tuple[RuledOut, ...] = ()
    """What constraints and divisibility left no choice about."""
    unknown: str = ""
    """What cannot be said, and why."""

    @property
    def difference_s(self) -> float | None:
        """The seconds of a step that the runner-up would cost more."""
        return None if self.runner_up_cost_s is None else self.runner_up_cost_s - self.plan_cost_s

    def __str__(self) -> str:
        m, k, n = self.shape
        stored = f", {self.weight} stored {self.stored}" if self.stored else ""
        lines = [f"{self.path}: {self.placement}  (m={m} k={k} n={n}{stored})"]
        if self.together:
            lines.append(f"  decided together with {_listed(self.together)}")
        if self.compute_s is not None:
            lines.append(f"  computes for {duration(self.compute_s)}")
        for phase in ("forward", "backward"):
            moves = [move for move in self.moves if move.phase == phase]
            if moves:
                total_s = sum(move.cost_s for move in moves)
                lines += [f"  {phase}, {duration(total_s)} of moves", *(f"    {move}" for move in moves)]
        lines += self._runner_up_lines()
        if self.ruled_out:
            lines += ["  ruled out", *(f"    {item}" for item in self.ruled_out)]
        if self.unknown:
            lines.append(f"  not known: {self.unknown}")
        return "\n".join(lines)

    def _runner_up_lines(self) -> list[str]:
        if self.compute_s is None:
            return []
        if self.runner_up is None or self.runner_up_cost_s is None or self.difference_s is None:
            return ["  runner-up: none, there is no other placement"]
        more = self.difference_s / self.plan_cost_s if self.plan_cost_s else 0.0
        certificate = "" if self.runner_up_certificate == "optimal" else f", {self.runner_up_certificate}"
        return [
            f"  runner-up: {self.runner_up}, {duration(self.runner_up_cost_s)} a step instead of "
            f"{duration(self.plan_cost_s)}: {duration(self.difference_s)} ({more:.2%}) more{certificate}"
        ]


def duration(time_s: float) -> str:
    """Seconds in the unit that reads best.

    >>> duration(0.00321)
    '3.21 ms'
    """
    for unit, size_s in (("s", 1.0), ("ms", 1e-3)):
        if time_s >= size_s:
            return f"{time_s / size_s:.3g} {unit}"
    return f"{time_s / 1e-6:.3g} us"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:2])
    return f"{shown} and {len(names) - 2} more" if len(names) > 2 else shown
