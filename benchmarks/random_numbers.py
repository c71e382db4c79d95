"""What a random number costs: masks and uniform numbers of the generator that is the same on every grid, and torch's.

    python benchmarks/random_numbers.py --device cpu --elements 1048576

Calls are interleaved in one run, on one thread; the shortest of each is printed, in nanoseconds an element.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from axograph.capture.random_numbers import random


def calls(elements: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """What is compared, by name."""
    rows, columns = elements // 1024, 1024
    key, x = torch.tensor(5, device=device), torch.randn(rows, columns, device=device)

    def drawn(kind: str, dtype: torch.dtype, row: int, first: int | None = None) -> Callable[[], object]:
        start = None if first is None else torch.tensor(first, device=device)
        return lambda: random(key, 0, start, [rows, columns], [row, 1], kind, 0.9, dtype, device)

    return {
        "a whole mask": drawn("keep", torch.bool, columns),
        "a part of one, cut evenly": drawn("keep", torch.bool, 2 * columns, columns),
        "a part of one, cut anywhere": drawn("keep", torch.bool, 2 * columns - 1, 3),
        "torch.native_dropout": lambda: torch.native_dropout(x, 0.1, True),
        "uniform numbers": drawn("uniform", torch.float32, columns),
        "torch.rand": lambda: torch.rand(rows, columns, device=device),
    }


def main() -> None:
    """Read the options, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--runs", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    compared = calls(options.elements, device)
    best_s = dict.fromkeys(compared, float("inf"))
    for _ in range(options.runs):
        for name, call in compared.items():
            start_s = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            best_s[name] = min(best_s[name], time.perf_counter() - start_s)
    for name, shortest_s in best_s.items():
        print(f"{name:<28} {shortest_s / options.elements * 1e9:6.2f} ns an element")


if __name__ == "__main__":
    main()
