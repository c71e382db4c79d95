"""What every rank of the test session runs; each scenario's findings are written as JSON for the tests to judge.

Started once by `conftest.py` as `torchrun worker.py FOLDER`, with four ranks over gloo.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import axograph
from axograph.capture.program import Facts, facts
from axograph.cost_model import RingModel
from axograph.cost_model.protocol import Collective
from axograph.grid import Grid
from axograph.passes.sharding.collectives import LocalEmitter
from axograph.passes.sharding.reshard import Resharder
from axograph.passes.sharding.search import Search
from axograph.placement import Placement
from axograph.runtime import process_grid
from axograph.runtime.exchange import Exchange, wait
from axograph.runtime.parts import local_part
from axograph.runtime.process_grid import ProcessGrid
from axograph.torch_private import collective_op, fake_tensor_mode
from tests.cases.overlapping import Branches, Tied, apart, watched
from tests.cases.same import captured_once
from tests.interpreted import interpreted
from tests.masked import Masked
from tests.zoo import BY_NAME, loss_of


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (full(ours).detach() - theirs.detach()).abs().max().item()


@cache
def captured(name: str) -> dict[Any, Any]:
    """What is captured of a model of the zoo, for all scenarios with it."""
    return {}


def training(name: str, grid: tuple[int, int, int, int], scheme: str | None = None, **sizes: int) -> dict[str, Any]:
    """The largest differences to the unmodified model over three steps of SGD and of AdamW."""
    case = BY_NAME[name]
    model, inputs = case.model(), case.inputs(**sizes)
    original = copy.deepcopy(model)
    start = copy.deepcopy(model.state_dict())
    module = axograph.parallelize(model, grid=grid, scheme=scheme)
    worst: dict[str, float] = {}

    def see(what: str, value: float) -> None:
        worst[what] = max(worst.get(what, 0.0), value)

    for optimizer, options in ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.AdamW, {"lr": 1e-3, "eps": 1e-4})):
        module.load_state_dict(start)
        original.load_state_dict(start)
        steppers = [optimizer(m.parameters(), **options) for m in (module, original)]
        for _ in range(3):
            with captured_once(captured(name)):
                ours = module(**inputs)
            theirs = original(**inputs)
            for stepper, output in zip(steppers, (ours, theirs), strict=True):
                stepper.zero_grad()
                loss_of(output).backward()
            see("loss", difference(loss_of(ours), loss_of(theirs)))
            if not isinstance(theirs, torch.Tensor):
                see("logits", difference(ours["logits"], theirs["logits"]))
            found = dict(module.named_parameters())
            for key, parameter in original.named_parameters():
                if parameter.grad is not None:
                    see("gradients", difference(found[key].grad, parameter.grad))
            norms = [nn.utils.clip_grad_norm_(m.parameters(), 1e9) for m in (module, original)]
            see("gradient norm", difference(*norms))
            for stepper in steppers:
                stepper.step()
            for key, parameter in original.named_parameters():
                see("parameters", difference(found[key], parameter))
        for key, buffer in original.named_buffers():
            see("buffers", difference(dict(module.named_buffers())[key], buffer))
    kinds = sorted({type(p).__name__ if not isinstance(p, DTensor) else "DTensor" for p in module.parameters()})
    sharded = any(p.to_local().numel() < p.numel() for p in module.parameters())
    names = sorted(module.state_dict()) == sorted(original.state_dict())
    return {"worst": worst, "parameters": kinds, "sharded": sharded, "names": names}


def outputs() -> dict[str, Any]:
    """What a call returns: DTensors beside a loss, full tensors without one."""
    case = BY_NAME["gpt2"]
    model, inputs = case.model(), case.inputs()
    original = copy.deepcopy(model)
    module = axograph.parallelize(model, grid=(2, 1, 2, 1))
    with captured_once(captured("gpt2")):
        with_loss = module(**inputs)
    module.eval()
    original.eval()
    with torch.no_grad():
        without = module(input_ids=inputs["input_ids"])
        right = original(input_ids=inputs["input_ids"])
    return {
        "with loss": type(with_loss.logits).__name__,
        "without": type(without.logits).__name__,
        "difference": difference(without.logits, right.logits),
        "type": type(with_loss).__name__,
    }


def optimizer_made_first() -> dict[str, Any]:
    """An optimizer made before the first call trains the parameters that the calls use."""
    model = BY_NAME["mlp"].model()
    module = axograph.parallelize(model, grid=(2, 2, 1, 1))
    stepper = torch.optim.SGD(module.parameters(), lr=0.1)
    inputs = BY_NAME["mlp"].inputs()
    losses = []
    for _ in range(3):
        stepper.zero_grad()
        loss = loss_of(module(**inputs))
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return {"losses": losses}


def different_start() -> dict[str, Any]:
    """Ranks that initialise differently train the weights of rank 0."""
    torch.manual_seed(dist.get_rank())
    module = axograph.parallelize(nn.Linear(8, 8), grid=(2, 2, 1, 1))
    module(torch.ones(4, 8))
    weights = [torch.empty(8, 8) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, full(module.weight).detach().contiguous())
    torch.manual_seed(0)
    return {"difference": difference(weights[-1], nn.Linear(8, 8).weight)}


def dropout() -> dict[str, Any]:
    """Ranks whose generators differ have the masks that rank 0 draws."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.4), nn.Linear(12, 8), nn.Dropout(0.2))
    original, x = copy.deepcopy(model), torch.randn(8, 8)
    module = axograph.parallelize(model, grid=(2, 1, 1, 2))
    steps = []
    for seed in (dist.get_rank(), 0):
        torch.manual_seed(seed)
        ours = module(x)
        torch.manual_seed(0)
        with Masked():
            theirs = original(x)
        for each in (ours, theirs):
            each.square().mean().backward()
        pairs = zip(module.parameters(), original.parameters(), strict=True)
        found = [difference(ours, theirs), *(difference(a.grad, b.grad) for a, b in pairs)]
        steps.append({"difference": max(found), "dropped": (theirs == 0).float().mean().item()})
    return {"steps": steps}


RESHARDS = [
    ("[8/x, 12]", "[8, 12/x]"),
    ("[8/x.y, 12]", "[8, 12]"),
    ("[8, 12] partial(x, y)", "[8, 12]"),
    ("[8, 12] partial(x, y)", "[8/x, 12/y]"),
    ("[8/y, (3 4/x)]", "[8/x, (3 4/y)]"),
    ("[8/y, 12] partial(x)", "[8, 12/x]"),
    ("[8, 12] partial(x:max)", "[8/y, 12]"),
    ("[8, 12]", "[8/x, 12/y]"),
    ("[8/x, 12/y]", "[8/y, 12/x]"),
    ("[8, (3/x 4)]", "[8, (3 4/x)]"),
    ("[8, (3/x.y 4)]", "[8, (3 4)]"),
    ("[8, (3 4)] partial(x, y)", "[8/y, (3/x 4)]"),
    ("[8/x, (3/y 4)]", "[8/y, (3/x 4)]"),
]


def reshards() -> dict[str, Any]:
    """Reshards over real groups, against the part that this rank should hold."""
    grid = Grid(2, 2, 1, 1)
    engine = ProcessGrid(grid, torch.device("cpu"))
    worst = {}
    for before, after in RESHARDS:
        source, target = Placement.parse(before), Placement.parse(after)
        pending = dict(source.partial)
        whole = torch.arange(96.0).reshape(8, 12)
        emit = LocalEmitter(grid)
        with fake_tensor_mode():
            given = emit.placeholder("given", torch.empty(source.local_shape(grid)), Facts())
            for axis in grid.cut_axes:
                emit.coordinates[axis] = emit.placeholder(f"at_{axis}", torch.empty((), dtype=torch.int64), Facts())
        path = Resharder(grid, RingModel()).path(source, target, "f32", 4)
        emit.graph.output((emit.reshard(given, source, path, ""),))
        run = engine.bind(torch.fx.GraphModule(nn.Module(), emit.graph))
        part = local_part(whole, source.reduced(), grid, engine.position).contiguous()
        share = 1.0 if "max" in pending.values() else 1.0 / grid.extent(pending)
        (result,) = run([part * share, *(engine.coordinate(axis) for axis in grid.cut_axes)])
        worst[f"{before} -> {after}"] = difference(result, local_part(whole, target, grid, engine.position))
    return worst


def exchanges() -> dict[str, Any]:
    """Exchanges among four ranks, several under way at once, against gloo's own collectives."""
    group = dist.new_group([0, 1, 2, 3])
    exchange = Exchange(group)
    given = torch.randn(8, 3, generator=torch.Generator().manual_seed(dist.get_rank()), dtype=torch.float64)
    rows = given.view(4, 2, 3)
    under_way = [
        exchange.reduce_scatter(given, "sum", 4),
        exchange.reduce_scatter(given, "max", 4),
        exchange.all_to_all(rows, [1] * 4, [1] * 4),
        exchange.all_gather(given, 4),
    ]
    right = [given.new_empty(2, 3), given.new_empty(2, 3), torch.empty_like(rows), given.new_empty(32, 3)]
    for target, kind in zip(right, (dist.ReduceOp.SUM, dist.ReduceOp.MAX), strict=False):
        dist.reduce_scatter_single(target, given, op=kind, group=group)
    dist.all_to_all_single(right[2], rows, group=group)
    dist.all_gather_single(right[3], given, group=group)
    replaced = [
        name
        for name, arguments in (
            ("all_reduce", (given, "sum", "x")),
            ("all_gather_into_tensor", (given, 4, "x")),
            ("reduce_scatter_tensor", (given, "sum", 4, "x")),
            ("reduce_scatter_tensor", (given, "avg", 4, "x")),
            ("all_to_all_single", (given, [1] * 4, [1] * 4, "x")),
        )
        if exchange.instead_of(collective_op(name), arguments) is not None
    ]
    differences = [difference(wait(made), target) for made, target in zip(under_way, right, strict=True)]
    return {"differences": differences, "replaced": replaced}


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            raise ValueError("only rank 1 fails")
        return x @ x.T


def error_of(call: Callable[[], Any]) -> dict[str, Any]:
    """The error that a call raises, and the seconds until it does."""
    start_s = time.perf_counter()
    try:
        call()
    except ValueError as error:
        kind, text = type(error).__name__, str(error)
    else:
        kind, text = "none", ""
    return {"kind": kind, "text": text, "time_s": time.perf_counter() - start_s}


def world_size() -> dict[str, Any]:
    return error_of(lambda: axograph.parallelize(nn.Linear(8, 8), grid=(2, 2, 2, 1)))


def different_programs() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU() if dist.get_rank() != 2 else nn.Tanh(), nn.Linear(8, 8))
    return error_of(lambda: axograph.parallelize(model, grid=(2, 1, 2, 1))(torch.ones(4, 8)))


def one_fails() -> dict[str, Any]:
    return error_of(lambda: axograph.parallelize(Raising(), grid=(2, 1, 2, 1))(torch.ones(4, 8)))


def different_inputs() -> dict[str, Any]:
    inputs = torch.full((4, 8), float(dist.get_rank() == 3))
    return error_of(lambda: axograph.parallelize(nn.Linear(8, 8), grid=(2, 1, 2, 1))(inputs))


def searches(fails: bool) -> dict[str, Any]:
    """How often this rank searches, and the plan that it gets, or the error where the search of rank 0 fails."""
    search, count = Search.run, 0

    def counted(self: Search) -> Any:
        nonlocal count
        count += 1
        if fails:
            raise ValueError("the search fails")
        return search(self)

    Search.run = counted  # type: ignore[method-assign]
    try:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        module = axograph.parallelize(model, grid=(2, 1, 2, 1), plan={"0": "n/x"})
        error = error_of(lambda: module(torch.ones(4, 8)))
    finally:
        Search.run = search  # type: ignore[method-assign]
    if fails:
        return {"count": count, "error": error}
    plan = {path: str(placed) for path, placed in module.plan.items()}
    return {"count": count, "plan": plan, "error": error, "explained": str(module.plan.explain("2"))}


def overlap() -> dict[str, Any]:
    """Twenty steps with collectives under way, and with each waited for at once, on ranks that are late at times."""
    grid = (2, 1, 2, 1)
    inputs = torch.arange(24).reshape(4, 6) * 7 % 24, torch.arange(24).reshape(4, 6) * 5 % 23
    late = random.Random(dist.get_rank())
    seen, issued = {}, {}
    with captured_once():
        for overlap in (True, False):
            torch.manual_seed(0)
            model = Tied().double()
            with recorded(Grid(*grid)) as issued[overlap]:
                options: dict[str, Any] = {"scheme": "axonn", "chunks": 1, "pipeline": apart}
                module = axograph.parallelize(model, grid, overlap=overlap, **options)
                seen[overlap] = watched(module, inputs, 20, pause=lambda: time.sleep(late.choice([0.0, 0.0, 0.01])))
    torch.manual_seed(0)
    original = Tied().double()
    watched(original, inputs, 20)
    worst = max(difference(a, b) for a, b in zip(module.parameters(), original.parameters(), strict=True))
    different = sum(not torch.equal(a, b) for a, b in zip(seen[True], seen[False], strict=True))
    return {"seen": len(seen[True]), "different": different, "worst": worst, "on": issued[True], "off": issued[False]}


@contextmanager
def recorded(grid: Grid) -> Iterator[list[tuple[str, list[int], list[int]]]]:
    """The collectives that modules made in this context start: (kind, ranks of the group, shape of what is sent)."""
    calls: list[tuple[str, list[int], list[int]]] = []
    boxed = process_grid.boxed

    def noted(node: torch.fx.Node, moved: Collective) -> Callable[..., Any]:
        start, ranks = node.target, list(grid.group(moved.axes, dist.get_rank()))

        def call(sent: torch.Tensor, *args: Any) -> Any:
            calls.append((moved.kind, ranks, list(sent.shape)))
            return start(sent, *args)  # type: ignore[operator]

        return call

    def bind(graph: torch.fx.Graph) -> Any:
        for node in graph.nodes:
            moved = facts(node).collective
            if moved is not None:
                node.target = noted(node, moved)
        return boxed(graph)

    process_grid.boxed = bind
    try:
        yield calls
    finally:
        process_grid.boxed = boxed


def compiled() -> dict[str, Any]:
    """A step where stretches between collectives are taken out of the graph, and one where they are not."""
    seen, issued = {}, {}
    with captured_once(), patch("axograph.runtime.inductor.compile_graph", interpreted):
        for compile in (True, False):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8)).double()
            x = torch.randn(4, 8, dtype=torch.float64)
            with recorded(Grid(2, 1, 2, 1)) as issued[compile]:
                module = axograph.parallelize(model, (2, 1, 2, 1), scheme="axonn", chunks=1, compile=compile)
                full(module(x)).square().mean().backward()
            seen[compile] = [full(parameter.grad) for parameter in module.parameters()]
    worst = max(difference(a, b) for a, b in zip(seen[True], seen[False], strict=True))
    return {"worst": worst, "with": issued[True], "without": issued[False]}


def each_searches() -> dict[str, Any]:
    """Every rank searches by itself, with its own hashes of strings: the programs are compared as always."""
    once, ProcessGrid.once = ProcessGrid.once, None  # type: ignore[method-assign, assignment]
    tokens = torch.arange(12).reshape(4, 3)
    try:
        axograph.parallelize(Branches().double(), (1, 2, 2, 1), sample_inputs=(tokens,))
    finally:
        ProcessGrid.once = once  # type: ignore[method-assign]
    return {"hash": hash("name")}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "gpt on x and z": lambda: training("gpt", (2, 1, 2, 1)),
    "gpt2 on y and data": lambda: training("gpt2", (1, 2, 1, 2)),
    "llama on x and y": lambda: training("llama", (2, 2, 1, 1)),
    "mlp on z and data": lambda: training("mlp", (1, 1, 2, 2)),
    "gpt fsdp": lambda: training("gpt", (1, 1, 4, 1), "fsdp"),
    "odd on x and data": lambda: training("odd", (2, 1, 1, 2), batch=5, length=7),
    "outputs": outputs,
    "optimizer made first": optimizer_made_first,
    "different start": different_start,
    "dropout": dropout,
    "reshards": reshards,
    "exchanges": exchanges,
    "one rank searches": lambda: searches(fails=False),
    "the search fails": lambda: searches(fails=True),
    "world size": world_size,
    "different programs": different_programs,
    "one fails": one_fails,
    "different inputs": different_inputs,
    "overlap": overlap,
    "compiled": compiled,
    "each searches": each_searches,
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, scenario in SCENARIOS.items():
        start_s = time.perf_counter()
        found[name] = scenario()
        print(f"rank {dist.get_rank()}: {name} took {time.perf_counter() - start_s:.1f} s", file=sys.stderr, flush=True)
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
