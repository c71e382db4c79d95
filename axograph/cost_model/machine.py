"""A machine's figures, as its TOML file states them. What they cost is the cost models' business.

The files that come with AxoGraph are in `machines/`; each figure has its source in a comment there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path

from axograph.cost_model.machine_table import Table
from axograph.errors import AxographError


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRate:
    """How fast one rank multiplies matrices of one element type."""

    dtype: str
    """The element type as printed in placements: "bf16", "f32", ..."""
    peak_flops_per_s: float
    """The vendor's advertised figure, dense, a multiply-add counted as two."""
    achievable_fraction: float
    """The part of the peak that large matrix multiplications reach, at most 1."""

    @classmethod
    def of(cls, dtype: str, table: Table) -> MatmulRate:
        """Read the rate of an element type from its table; `AxographError` if it does not hold one."""
        rate = cls(dtype=dtype, **table.numbers("peak_flops_per_s", "achievable_fraction"))
        if rate.achievable_fraction > 1:
            raise table.refusal("achievable_fraction", repr(rate.achievable_fraction), "at most 1")
        return rate

    @property
    def achievable_flops_per_s(self) -> float:
        """What large matrix multiplications reach."""
        return self.peak_flops_per_s * self.achievable_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class IntraNodeLinks:
    """The links between the ranks of one node."""

    rank_bytes_per_s: float
    """All links of one rank together, each way."""
    peer_bytes_per_s: float
    """From one rank to one other, each way; the same as `rank_bytes_per_s` behind a switch."""
    step_latency_s: float
    """Seconds that one step of a ring takes before its first byte arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterNodeLinks:
    """The network between nodes."""

    node_bytes_per_s: float
    """All network interfaces of a node together, each way; the ranks of the node share them."""
    step_latency_s: float
    """Seconds that one step of a ring takes before its first byte arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Nodes of equal ranks, joined by a network.

    >>> machine = Machine.load("perlmutter")
    >>> machine.ranks_per_node, machine.inter_node.node_bytes_per_s
    (4, 100000000000.0)

    Another figure: `dataclasses.replace(machine, memory_bytes=80e9)`. Another machine: `Machine.load("mine.toml")`.
    """

    name: str
    ranks_per_node: int
    memory_bytes: float
    """Memory of one rank."""
    memory_bytes_per_s: float
    """Memory bandwidth of one rank."""
    kernel_launch_s: float
    """What starting one kernel adds to its work while a queue of kernels runs."""
    matmul: tuple[MatmulRate, ...]
    """One rate for each element type."""
    intra_node: IntraNodeLinks
    inter_node: InterNodeLinks

    @classmethod
    def load(cls, source: str | Path) -> Machine:
        """Read a machine that comes with AxoGraph, by name, or a TOML file, by path; `AxographError` where it cannot.

        A string is a path if it ends in ".toml".
        """
        if isinstance(source, Path) or source.endswith(".toml"):
            path = Path(source)
            if not path.is_file():
                raise _unknown(source)
            return cls.parse(path.read_text(encoding="utf-8"), where=str(source))
        if source not in cls.known():
            raise _unknown(source)
        text = (files("axograph.cost_model") / "machines" / f"{source}.toml").read_text(encoding="utf-8")
        return cls.parse(text, where=source)

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """Names of the machines that come with AxoGraph."""
        entries = (files("axograph.cost_model") / "machines").iterdir()
        return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))

    @classmethod
    def parse(cls, text: str, *, where: str = "TOML") -> Machine:
        """Make a machine from the text of a TOML file; `AxographError`, naming `where`, if it is not one."""
        top = Table.parse(text, where=where)
        top.require(field.name for field in fields(cls))
        rates = top.table("matmul")
        intra, inter = top.table("intra_node"), top.table("inter_node")
        return cls(
            name=top.text("name"),
            ranks_per_node=top.count("ranks_per_node"),
            memory_bytes=top.number("memory_bytes"),
            memory_bytes_per_s=top.number("memory_bytes_per_s"),
            kernel_launch_s=top.number("kernel_launch_s"),
            matmul=tuple(MatmulRate.of(dtype, rates.table(dtype)) for dtype in rates.entries),
            intra_node=IntraNodeLinks(**intra.numbers("rank_bytes_per_s", "peer_bytes_per_s", "step_latency_s")),
            inter_node=InterNodeLinks(**inter.numbers("node_bytes_per_s", "step_latency_s")),
        )

    def matmul_flops_per_s(self, dtype: str) -> float:
        """The achievable rate of one rank; an element type that is not listed counts at the slowest listed rate."""
        for rate in self.matmul:
            if rate.dtype == dtype:
                return rate.achievable_flops_per_s
        return min(rate.achievable_flops_per_s for rate in self.matmul)

    @property
    def slowest_link_bytes_per_s(self) -> float:
        """What a rank is left with where every rank of its node uses the slowest links at once."""
        shared = self.inter_node.node_bytes_per_s / self.ranks_per_node
        return min(shared, self.intra_node.rank_bytes_per_s, self.intra_node.peer_bytes_per_s)


def _unknown(source: str | Path) -> AxographError:
    known = ", ".join(Machine.known())
    return AxographError(
        f"no machine {str(source)!r}",
        asked=f"Machine.load({str(source)!r})",
        given=f"the machines {known}",
        rule="a machine is one of these by name, or a TOML file that exists, by a path that ends in .toml",
        remedy='Machine.load("perlmutter"), or a copy of one of the files with your own figures',
    )
