"""The pass `bucket`: fewer collectives, the same bytes and the same numbers, and a step that is not longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import axograph
from axograph.capture.program import Program, facts
from axograph.codegen.compiled import Compiled
from axograph.cost_model import RingModel
from axograph.cost_model.machine import Machine
from axograph.grid import Grid
from axograph.inspection.volume import volume
from axograph.passes.scheduling.buckets import BucketCollectives
from axograph.passes.scheduling.estimate import step_s
from axograph.passes.scheduling.schedule import Schedule
from axograph.runtime.virtual_grid import VirtualGrid
from tests.zoo import BY_NAME


def far(latency_s: float) -> RingModel:
    """Links of which a step takes this long before its first byte arrives."""
    machine = Machine.load("perlmutter")
    return RingModel(replace(machine, intra_node=replace(machine.intra_node, step_latency_s=latency_s)))


FAR = far(1e-4)

MANY = {("all_gather", "z"): 28, ("all_reduce", "z.data"): 3, ("reduce_scatter", "z"): 27, ("all_reduce", "data"): 27}
FEW = {("all_gather", "z"): 1, ("all_reduce", "z.data"): 3, ("reduce_scatter", "z"): 1, ("all_reduce", "data"): 1}


def sent(program: Program) -> dict[tuple[str, str], list[float]]:
    """Of both halves, by kind and axes, the bytes of each collective."""
    found: dict[tuple[str, str], list[float]] = {}
    for half in (program, program.backward):
        for node in half.graph.nodes if half is not None else ():
            moved = facts(node).collective
            if moved is not None:
                found.setdefault((moved.kind, ".".join(moved.axes)), []).append(moved.size_bytes)
    return found


def test_buckets_change_no_bit_and_no_byte() -> None:
    """Gathers of weights, reduce-scatters of their gradients, and the all-reduces that follow these."""
    axes = (1, 1, 2, 2)
    case, grid = BY_NAME["gpt"], Grid(*axes)
    module = axograph.parallelize(
        case.model(), axes, scheme="axonn", sample_inputs=case.inputs(), cost_model=FAR, overlap=False,
        pipeline=lambda passes: [step for step in passes if step.name != "bucket"],
    )  # fmt: skip
    before = module.stages["split"].program
    after = BucketCollectives(grid=grid, cost_model=FAR, slack=2.0).run(before)
    scheduled = Schedule(grid=grid, cost_model=FAR).run(after)
    tensors = list(case.inputs().values())
    results = []
    for program in (before, after, scheduled):
        run = Compiled(program, VirtualGrid(grid), module, lambda: pytest.fail("it is not widened"))
        loss = run(tensors)[0]
        results.append([loss, *torch.autograd.grad(loss, list(module.parameters()))])
    for ours in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ours, results[0], strict=True))
        assert all(a.stride() == b.stride() for a, b in zip(ours, results[0], strict=True))
    assert {key: len(sizes) for key, sizes in sent(before).items()} == MANY
    assert {key: len(sizes) for key, sizes in sent(after).items()} == FEW
    bytes_of = [{key: sum(sizes) for key, sizes in sent(program).items()} for program in (before, after)]
    assert bytes_of[0] == bytes_of[1]
    assert volume(after).moved == volume(before).moved
    assert step_s(after, grid, FAR) < step_s(before, grid, FAR)
