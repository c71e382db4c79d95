"""One rank of one system: told the number of a step on stdin, it takes that step and answers with a line of JSON."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist

from benchmarks.cluster.gloo_model import Figures
from benchmarks.cluster.systems import Task, build, parse
from benchmarks.cluster.workload import Sizes, make_batch, make_model

TIMEOUT_S = 300


def main() -> None:
    """Serve steps until stdin ends. What libraries print goes to stderr."""
    told = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    name, options = parse(told.pop("system"))
    sizes = Sizes(**told.pop("sizes"))
    ranks = told["ranks"]
    if ranks > 1:
        timeout = datetime.timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", rank=told["rank"], world_size=ranks, timeout=timeout)
    figures = Figures(**told.pop("figures"))
    task = Task(model=make_model(sizes), options=options, figures=figures, **told)
    step = build(name, task)
    for line in sys.stdin:
        batch = make_batch(sizes, int(line))
        if ranks > 1:
            dist.barrier()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        loss = step(batch)
        answer = {"wall_s": time.perf_counter() - start_s, "cpu_s": time.process_time() - start_cpu_s}
        print(json.dumps({**answer, "loss": float(loss), **task.simulated}), file=answers, flush=True)
    os._exit(0)  # process groups of a partner that has left may not close


if __name__ == "__main__":
    main()
