"""Training systems side by side on a cluster in a box: hosts as network namespaces, shaped links, ranks over gloo.

    python -m benchmarks.cluster ddp fsdp2 axograph:grid=1x1x1x2 axograph:grid=1x1x1x2,schedule=0
    python -m benchmarks.cluster --sizes brief --set layers=6 --rounds 6 tensor_parallel axograph:grid=2x1x1x1

Run as root from the root of the repository; needs iproute2. Files in `systems/` are the systems. All stay alive and
take turns, a step each, in an order that reverses every round, so that a busy machine is busy for all. `alone` (each
rank trains its part and tells nobody) is always among them: what a step takes longer is its exposed communication.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import statistics
import sys

from benchmarks.cluster.gloo_model import Figures
from benchmarks.cluster.hosts import Hosts, refuse_without_means
from benchmarks.cluster.running import Running
from benchmarks.cluster.workload import SIZES, Sizes

COLUMNS = (
    "system", "median step", "min", "max", "x alone", "exposed", "simulated step", "exposed", "CPU per rank",
    "sent per rank", "loss difference", "others' CPU",
)  # fmt: skip
RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", help="name:option=value,...")
    parser.add_argument("--sizes", choices=SIZES, default="balanced")
    parser.add_argument("--set", nargs="*", default=[], metavar="SIZE=N", help="other sizes, such as layers=6")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="of all hosts together")
    parser.add_argument("--rate", default="200mbit", help="of each link, each way")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--check", type=int, default=4, help="steps whose losses are compared with one rank's")
    parser.add_argument("--figures", metavar="FILE", help="of the box for the cost model, written by calibrate")
    parser.add_argument("--max-foreign", type=float, default=0.08, help="of the processors; busier steps are repeated")
    parser.add_argument("--repeats", type=int, default=2, help="of a step while the machine is busier")
    parser.add_argument("--port", type=int, default=29700)
    return parser.parse_args()


def rate_bytes_per_s(text: str) -> float:
    """The rate of a link in tc's notation."""
    return float(text[:-4]) * RATES[text[-4:]] / 8


def turn(system: Running, options: argparse.Namespace) -> int:
    """The number of a step taken, of several the one least disturbed."""
    numbers = []
    for _ in range(options.repeats + 1):
        numbers.append(len(system.steps))
        if system.step().foreign <= options.max_foreign:
            break
    return min(numbers, key=lambda n: system.steps[n].foreign)


def table(systems: list[Running], measured: dict[str, list[int]], reference: list[float]) -> str:
    """A row for each system; ratios and exposed communication are medians over rounds."""
    walls = {s.name: [s.steps[n].wall_s for n in measured[s.name]] for s in systems}
    alone = walls["alone"]
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for system in systems:
        wall = walls[system.name]
        steps = [system.steps[n] for n in measured[system.name]]
        ratio = statistics.median(a / b for a, b in zip(wall, alone, strict=True))
        exposed = statistics.median(wall) - statistics.median(alone)
        apart = max(abs(step.loss - loss) for step, loss in zip(system.steps, reference, strict=False))
        lines.append(
            f"| {system.name} | {statistics.median(wall):.2f} s | {min(wall):.2f} | {max(wall):.2f} | {ratio:.2f}"
            f" | {exposed:.2f} s | {seconds(steps[-1].simulated_s)} | {seconds(steps[-1].simulated_exposed_s)}"
            f" | {statistics.median(s.cpu_s for s in steps):.2f} s"
            f" | {statistics.median(s.sent_bytes for s in steps) / 1e6:.1f} MB | {apart:.0e}"
            f" | {statistics.median(s.foreign for s in steps):.0%} |"
        )
    return "\n".join(lines)


def seconds(time_s: float | None) -> str:
    """A time for the table."""
    return "" if time_s is None else f"{time_s:.2f} s"


def main() -> None:
    """Start all, interleave their steps, print the table."""
    options = arguments()
    refuse_without_means()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are taken down on the way out
    changed = dict(pair.split("=") for pair in options.set)
    sizes = dataclasses.replace(SIZES[options.sizes], **{name: int(value) for name, value in changed.items()})
    figures = Figures.load(options.figures) if options.figures else Figures()
    told = {
        "optimizer": options.optimizer,
        "link_bytes_per_s": rate_bytes_per_s(options.rate),
        "figures": dataclasses.asdict(figures.shared(options.ranks / (os.cpu_count() or 1))),
    }
    print(f"{sizes}\n{options.hosts} hosts, {options.ranks} ranks, links {options.rate}", flush=True)
    with Hosts(options.hosts, options.rate) as hosts:
        reference = losses(hosts, sizes, told, options)
        systems = []
        for i, name in enumerate(dict.fromkeys(["alone", *options.systems])):
            system = Running.start(name, hosts, options.ranks, options.port + i, sizes, told)
            first = [system.step().wall_s for _ in range(options.warm_up)]
            systems.append(system)
            print(f"  {name}: warm-up {', '.join(f'{s:.1f} s' for s in first)}", flush=True)
        measured: dict[str, list[int]] = {system.name: [] for system in systems}
        for n in range(options.rounds):
            for system in systems if n % 2 == 0 else reversed(systems):
                measured[system.name].append(turn(system, options))
            print(f"  round {n + 1}: {'  '.join(f'{s.steps[-1].wall_s:.2f}' for s in systems)}", flush=True)
        print(table(systems, measured, reference))


def losses(hosts: Hosts, sizes: Sizes, told: dict[str, object], options: argparse.Namespace) -> list[float]:
    """The losses of the first steps on one rank with the whole batch."""
    whole = Running.start("alone", hosts, 1, options.port, sizes, told)
    found = [whole.step().loss for _ in range(options.check)]
    whole.end()
    return found


if __name__ == "__main__":
    main()
