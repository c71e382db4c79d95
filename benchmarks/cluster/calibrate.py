"""The figures of this box for the cost model: how fast a rank computes, and what collectives take on a shaped link.

    python -m benchmarks.cluster.calibrate --write box.json
    python -m benchmarks.cluster --figures box.json ...

Run as root from the root of the repository, on a quiet machine. Collectives are those of AxoGraph's runtime, between
two hosts of one rank; their seconds are fitted as a latency and bytes on the part of the link that they fill.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from axograph.runtime.exchange import Exchange, wait
from benchmarks.cluster.gloo_model import Figures
from benchmarks.cluster.hosts import Hosts, refuse_without_means

PRODUCTS = ((4096, 512, 2048), (4096, 2048, 512), (512, 4096, 2048), (1024, 512, 2048), (2048, 256, 1024))
"""m, k, n of products such as those of the benchmark's models."""
SIZES_MIB = (1, 4, 8, 16)
"""Of whole tensors: the larger side of each collective."""
SENT = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}
"""What each of two ranks sends, in sizes of the whole tensor."""
REPEATS = 5
SMALL = 20
"""All-reduces of a few bytes that are under way at once."""


def quickest_s(work: Callable[[], object]) -> float:
    """Seconds of a call, the shortest of a few."""
    work()
    times = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return min(times)


def computing() -> dict[str, float]:
    """The rates of products and of pointwise operators on one thread, and the start of an operator."""
    torch.set_num_threads(1)
    flops = taken_s = 0.0
    for m, k, n in PRODUCTS:
        a, b = torch.randn(m, k), torch.randn(n, k)
        flops += 2 * m * k * n
        taken_s += quickest_s(lambda a=a, b=b: a @ b.t())  # type: ignore[misc]
    small = torch.randn(4)
    activations = [torch.randn(4096, features) for features in (512, 512, 512, 512, 2048)]
    moved = sum(3 * 4 * x.numel() for x in activations)
    moving_s = sum(quickest_s(lambda x=x: x + x) for x in activations)  # type: ignore[misc]
    return {
        "flops_per_s": flops / taken_s,
        "memory_bytes_per_s": moved / moving_s,
        "operator_s": quickest_s(lambda: [torch.add(small, small) for _ in range(1000)]) / 1000,
    }


def serve(rank: int) -> None:
    """One rank: told a collective and a size on stdin, it answers with its seconds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    exchange = Exchange(dist.group.WORLD)  # type: ignore[arg-type]
    for line in sys.stdin:
        name, count = json.loads(line)
        whole = torch.ones(count)
        calls: dict[str, Callable[[], object]] = {
            "small": lambda whole=whole: [wait(p) for p in [exchange.all_reduce(whole, "sum") for _ in range(SMALL)]],
            "all_reduce": lambda whole=whole: wait(exchange.all_reduce(whole, "sum")),
            "all_gather": lambda whole=whole: wait(exchange.all_gather(whole.chunk(2)[0], 2)),
            "reduce_scatter": lambda whole=whole: wait(exchange.reduce_scatter(whole, "sum", 2)),
        }
        dist.barrier()
        start_s = time.perf_counter()
        calls[name]()
        print(json.dumps(time.perf_counter() - start_s), flush=True)
    os._exit(0)


def communicating(rate: str, link_bytes_per_s: float) -> dict[str, float]:
    """What a small all-reduce takes among others, and the part of a link that collectives fill."""
    filled = []
    with Hosts(2, rate) as hosts:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        env = {"MASTER_PORT": "29690", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", "benchmarks.cluster.calibrate", "--serve"]
        ranks = [hosts.start(rank, [*command, str(rank)], env, **pipes) for rank in range(2)]

        def taken_s(name: str, count: int) -> float:
            times = []
            for _ in range(REPEATS):
                for process in ranks:
                    assert process.stdin is not None
                    process.stdin.write(f"{json.dumps([name, count])}\n".encode())
                    process.stdin.flush()
                times.append(max(float(process.stdout.readline()) for process in ranks))  # type: ignore[union-attr]
            return statistics.median(times)

        latency_s = taken_s("small", 2) / SMALL
        for name, part in SENT.items():
            times = [taken_s(name, mib * 2**18) for mib in SIZES_MIB]
            slope, constant_s = statistics.linear_regression([part * mib * 2**20 for mib in SIZES_MIB], times)
            filled.append(1 / (slope * link_bytes_per_s))
            told = ", ".join(f"{mib} MiB {t * 1e3:.1f} ms" for mib, t in zip(SIZES_MIB, times, strict=True))
            print(f"{name}: {told}; fills {filled[-1]:.0%} of the link, {constant_s * 1e3:+.1f} ms", flush=True)
    return {"latency_s": latency_s, "filled": statistics.median(filled)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="200mbit", help="of each link, each way")
    parser.add_argument("--write", metavar="FILE", help="where the figures go")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
    refuse_without_means()
    from benchmarks.cluster.__main__ import rate_bytes_per_s

    found = Figures(**computing(), **communicating(options.rate, rate_bytes_per_s(options.rate)))
    print(found)
    if options.write:
        found.save(options.write)


if __name__ == "__main__":
    main()
