"""A system whose ranks are alive, and the steps that they took."""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster.hosts import Hosts
from benchmarks.cluster.workload import Sizes

SETTLE_S = 0.15
"""The shaper's queue empties in this time: gloo may return before its last bytes are on the link."""
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Taken:
    """A step of all ranks."""

    wall_s: float
    """Of the slowest rank."""
    cpu_s: float
    """Mean of ranks."""
    loss: float
    """Mean of ranks."""
    sent_bytes: float
    """On the link, mean of ranks."""
    foreign: float
    """The part of the machine's processors that others used meanwhile."""
    simulated_s: float | None = None
    simulated_exposed_s: float | None = None
    """What a simulator says of the step; None where there is none."""


@dataclass(slots=True)
class Running:
    """A system's processes. They are stopped (SIGSTOP) between its steps: gloo's threads would wake up even so."""

    name: str
    hosts: Hosts
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    steps: list[Taken] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, hosts: Hosts, ranks: int, port: int, sizes: Sizes, told: dict[str, Any]) -> Running:
        """Start the ranks, spread evenly over the hosts."""
        running = cls(name, hosts)
        per_host = max(ranks // hosts.count, 1)
        env = {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        for rank in range(ranks):
            task = {**told, "system": name, "sizes": asdict(sizes), "rank": rank, "ranks": ranks}
            command = [
                sys.executable,
                "-m",
                "benchmarks.cluster.rank",
                json.dumps({**task, "ranks_per_host": per_host}),
            ]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            running.processes.append(hosts.start(rank // per_host, command, env, **pipes))
        return running

    def step(self) -> Taken:
        """Take the next step."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
        sent, busy, own, start_s = self.hosts.sent_bytes(), _busy_s(), self._cpu_s(), time.monotonic()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{len(self.steps)}\n".encode())
            process.stdin.flush()
        answers = [self._answer(process) for process in self.processes]
        took_s = time.monotonic() - start_s
        foreign = (_busy_s() - busy - (self._cpu_s() - own)) / took_s / (os.cpu_count() or 1)
        time.sleep(SETTLE_S)
        taken = Taken(
            wall_s=max(a["wall_s"] for a in answers),
            cpu_s=statistics.fmean(a["cpu_s"] for a in answers),
            loss=statistics.fmean(a["loss"] for a in answers),
            sent_bytes=(self.hosts.sent_bytes() - sent) / len(answers),
            foreign=max(foreign, 0.0),
            simulated_s=answers[0].get("simulated_s"),
            simulated_exposed_s=answers[0].get("simulated_exposed_s"),
        )
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)
        self.steps.append(taken)
        return taken

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, float]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            time.sleep(1.0)
            codes = [other.poll() for other in self.processes]
            raise RuntimeError(f"{self.name}: rank {self.processes.index(process)} gave no answer; exit codes {codes}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the ranks."""
        for process in self.processes:
            process.kill()

    def _cpu_s(self) -> float:
        ticks = 0
        for process in self.processes:
            after = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(after[11]) + int(after[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    """Seconds that the processors were busy so far, with anything, or taken by a hypervisor."""
    n = [int(x) for x in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    return (n[0] + n[1] + n[2] + n[5] + n[6] + n[7]) / os.sysconf("SC_CLK_TCK")
