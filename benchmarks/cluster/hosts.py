"""Hosts in a box: network namespaces joined by a bridge, with links that `tc tbf` shapes. Linux and root only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

INTERFACE = "eth0"
BURST = "256kb"
LATENCY = "50ms"
"""How long a packet may queue before the shaper drops it."""


def refuse_without_means() -> None:
    """End the program, saying what is missing, where namespaces cannot be made."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if not sys.platform.startswith("linux") or missing or os.geteuid() != 0:
        given = f"{sys.platform}, user {os.geteuid()}" + "".join(f", no {program}" for program in missing)
        sys.exit(
            "cannot make hosts in a box\n"
            "  asked  network namespaces joined by shaped links\n"
            f"  given  {given}\n"
            "  rule   network namespaces need Linux, root, and iproute2 (ip and tc)\n"
            "  try    apt-get install iproute2, and run as root"
        )


def run(*command: str) -> str:
    """What a command printed; an error of it is raised with its own words."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Some hosts, which exist inside a `with`; processes started on them end with it."""

    def __init__(self, count: int, rate: str) -> None:
        self.count = count
        self.rate = rate
        self.names = [f"axobox-{os.getpid()}-{i}" for i in range(count)]
        self.switch = f"axobox-{os.getpid()}-switch"
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        self._remove()

    def _make(self) -> None:
        for name in (self.switch, *self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            port, ends = f"port{i}", ("type", "veth", "peer", "name", INTERFACE)
            run("ip", "link", "add", port, "netns", self.switch, *ends, "netns", name)
            run("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", INTERFACE)
            run("ip", "-n", name, "link", "set", INTERFACE, "up")
            self._shape(name, INTERFACE)
            if self.count > 2:  # several hosts could send to one
                self._shape(self.switch, port)

    def _shape(self, name: str, device: str) -> None:
        shape = ("rate", self.rate, "burst", BURST, "latency", LATENCY)
        run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", "tbf", *shape)

    def _remove(self) -> None:
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.98.0.{host + 1}"

    def start(self, host: int, command: list[str], env: dict[str, str], **pipes: Any) -> subprocess.Popen[bytes]:
        """Start a process on a host."""
        env = {**os.environ, **env, "GLOO_SOCKET_IFNAME": INTERFACE, "MASTER_ADDR": self.address(0)}
        process = subprocess.Popen(["ip", "netns", "exec", self.names[host], *command], env=env, **pipes)
        self.started.append(process)
        return process

    def sent_bytes(self) -> int:
        """Bytes that all hosts have put on their links so far."""
        total = 0
        for name in self.names:
            shown = json.loads(run("ip", "-n", name, "-s", "-j", "link", "show", "dev", INTERFACE))
            total += shown[0]["stats64"]["tx"]["bytes"]
        return total
