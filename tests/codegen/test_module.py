"""The parallel module: to its user it is the model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import axograph
from axograph.codegen.module import ParallelModule
from axograph.errors import AxographError, UnsupportedError
from tests.zoo import BY_NAME, MLP

GRIDS = [(1, 1, 1, 1), (2, 1, 1, 1)]
on_grids = pytest.mark.parametrize("grid", GRIDS, ids=str)
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))

Grid = tuple[int, int, int, int]


class Net(nn.Module):
    """Returns a loss, logits that it is made from, their best, and nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 8)
        self.outer = nn.Linear(8, 4)
        self.note = "mine"

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        logits = self.outer(torch.tanh(self.inner(x))) * scale
        return logits.pow(2).sum(), logits, logits.argmax(-1), None

    def describe(self) -> str:
        return f"{self.note}, {self.training}"


def pair(make: Callable[[], nn.Module], grid: Grid) -> tuple[ParallelModule, nn.Module]:
    """The parallel module of a model, and a copy of the model."""
    model = make()
    original = copy.deepcopy(model)
    return axograph.parallelize(model, grid), original


def assert_same_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    found = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad, msg=name)


def compilations(module: ParallelModule) -> int:
    return len(module._compiled)


# ---- names, modes and state


def test_names_attributes_and_methods_are_those_of_the_model() -> None:
    module, original = pair(Net, (2, 1, 1, 1))
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in original.named_parameters()]
    assert [name for name, _ in module.named_modules()] == ["", "inner", "outer"]
    assert (module.note, module.describe()) == ("mine", "mine, True")
    assert module.inner.out_features == 8
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = module.nothing_like_it


@on_grids
def test_train_and_eval_reach_the_model(grid: Grid) -> None:
    module = axograph.parallelize(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), grid)
    assert module.eval() is module
    assert not any(part.training for part in module.modules())
    before = module.get_buffer("1.running_mean").clone()
    module(X)
    assert torch.equal(module.get_buffer("1.running_mean"), before)
    assert module.train() is module
    assert all(part.training for part in module.modules())
    module(X)
    assert not torch.equal(module.get_buffer("1.running_mean"), before)
    assert compilations(module) == 2


@on_grids
def test_batch_norm_is_that_of_the_whole_batch(grid: Grid) -> None:
    module, original = pair(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), grid)
    for _ in range(2):
        torch.testing.assert_close(module(X), original(X))
    for name, buffer in original.named_buffers():
        torch.testing.assert_close(module.get_buffer(name), buffer)


@on_grids
def test_state_goes_out_and_in_under_the_names_of_the_model(grid: Grid) -> None:
    module, original = pair(MLP, grid)
    x = torch.randn(2, 3, 32)
    assert list(module.state_dict()) == list(original.state_dict())
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(1.0)
    result = module.load_state_dict(original.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    torch.testing.assert_close(module(x), original(x))
    original.load_state_dict(module.state_dict())
    assert original.calls.item() == 1
    with pytest.raises(RuntimeError, match="Missing key"):
        module.load_state_dict({})


def test_tied_weights_stay_one_parameter() -> None:
    case = BY_NAME["gpt"]
    module = axograph.parallelize(case.model(), (2, 1, 1, 1))
    module(**case.inputs())["loss"].backward()
    assert module.head.weight is module.tokens.weight
    names = [name for name, _ in module.named_parameters()]
    assert "tokens.weight" in names
    assert "head.weight" not in names
    assert module.tokens.weight.grad.shape == (96, 32)


def test_parameters_stay_the_same_objects() -> None:
    model = Net()
    before = list(model.parameters())
    module = axograph.parallelize(model, (2, 1, 1, 1))
    module(X)[0].backward()
    assert all(a is b for a, b in zip(module.parameters(), before, strict=True))


# ---- what is compiled when


def test_each_kind_of_call_is_compiled_once() -> None:
    module = axograph.parallelize(Net(), (1, 1, 1, 1))
    module(X)
    module(X + 1)
    assert compilations(module) == 1
    module(torch.cat([X, X]))
    assert compilations(module) == 2, "another shape"
    module.eval()
    module(X)
    assert compilations(module) == 3, "another mode"
    with torch.no_grad():
        module(X)
    assert compilations(module) == 4, "without gradients"
    module(X, scale=2.0)
    assert compilations(module) == 5, "another Python value"
    module(X.clone().requires_grad_())
    assert compilations(module) == 6, "a gradient of the input"
    module.inner.requires_grad_(False)
    module(X)
    assert compilations(module) == 7, "a frozen parameter"
    module.train().inner.requires_grad_(True)
    module(X)
    assert compilations(module) == 7, "as at first"
    module.double()
    module(X.double())
    assert compilations(module) == 8, "another type"


def test_a_change_of_the_parameters_type_alone_compiles_anew() -> None:
    module = axograph.parallelize(nn.Embedding(8, 4), (1, 1, 1, 1))
    ids = torch.zeros(2, dtype=torch.int64)
    assert module(ids).dtype == torch.float32
    assert module.double()(ids).dtype == torch.float64
    assert compilations(module) == 2


def test_arguments_that_are_no_tensors_are_part_of_the_program() -> None:
    module, original = pair(Net, (2, 1, 1, 1))
    for scale in (1.0, 3.0, 1.0):
        torch.testing.assert_close(module(X, scale), original(X, scale))
        torch.testing.assert_close(module(x=X, scale=scale), original(X, scale))


class Options:
    def __init__(self, scale: float) -> None:
        self.scale = scale


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, options: Options) -> torch.Tensor:
        return self.linear(x) * options.scale  # type: ignore[no-any-return]


def test_an_object_that_was_changed_between_calls_is_seen() -> None:
    module, original = pair(Configured, (1, 1, 1, 1))
    options = Options(1.0)
    torch.testing.assert_close(module(X, options), original(X, options))
    options.scale = 5.0
    torch.testing.assert_close(module(X, options), original(X, options))
    module(X, Options(5.0))
    assert compilations(module) == 2


def test_there_is_no_plan_before_the_first_call() -> None:
    module = axograph.parallelize(Net(), (1, 1, 1, 1))
    with pytest.raises(AxographError, match="there is no plan yet") as refusal:
        _ = module.plan
    assert refusal.value.asked == "pm.plan"
    assert "sample_inputs" in refusal.value.remedy
    module(X)
    assert list(module.plan) == ["inner", "outer"]
    assert module.plan["inner"].shape == (2, 4, 8)


def test_the_program_keeps_no_input_alive() -> None:
    import gc
    import weakref

    module = axograph.parallelize(Net(), (1, 1, 1, 1))
    x = torch.randn(2, 4)
    gone = weakref.ref(x)
    module(x)
    del x
    gc.collect()
    assert gone() is None


# ---- outputs and gradients


@on_grids
def test_outputs_have_the_structure_of_the_models(grid: Grid) -> None:
    module, original = pair(Net, grid)
    ours, theirs = module(X), original(X)
    assert type(ours) is tuple
    assert ours[3] is None
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(mine, other)
    assert [output.requires_grad for output in ours[:3]] == [True, True, False]


def test_a_hugging_face_output_keeps_its_class() -> None:
    case = BY_NAME["gpt2"]
    output = axograph.parallelize(case.model(), (2, 1, 1, 1))(**case.inputs(2, 4))
    assert type(output).__name__ == "CausalLMOutputWithCrossAttentions"
    assert output.logits.shape == (2, 4, 96)


@on_grids
def test_inputs_get_their_gradients(grid: Grid) -> None:
    module, original = pair(Net, grid)
    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    module(ours)[0].backward()
    original(theirs)[0].backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert_same_gradients(module, original)


@on_grids
def test_gradients_accumulate_over_calls(grid: Grid) -> None:
    module, original = pair(Net, grid)
    for run in (module, original):
        for factor in (1.0, 2.0):
            run(X * factor)[0].backward()
        (run(X)[0] + run(X * 3)[0]).backward()
    assert_same_gradients(module, original)


def test_hooks_on_parameters_see_full_gradients() -> None:
    module, original = pair(Net, (2, 1, 1, 1))
    seen: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for i, run in enumerate((module, original)):
        run.inner.weight.register_hook(seen[i].append)  # type: ignore[union-attr, operator]
        run.outer.weight.register_post_accumulate_grad_hook(lambda p, i=i: seen[i].append(p.grad))  # type: ignore
        run(X)[0].backward()
    ours, theirs = (sorted(found, key=lambda gradient: gradient.shape) for found in seen.values())
    assert [tuple(gradient.shape) for gradient in ours] == [(4, 8), (8, 4)]
    torch.testing.assert_close(ours, theirs)


@on_grids
def test_a_loss_that_uses_the_logits_too_gets_all_gradients(grid: Grid) -> None:
    module, original = pair(Net, grid)
    for run in (module, original):
        loss, logits, *_ = run(X)
        (loss + logits.sin().sum()).backward()
    assert_same_gradients(module, original)
    wide = module.compile_for(*_call(X))
    assert wide.program.differentiable == (0, 1)
    assert compilations(module) == 1


def _call(*args: Any) -> Any:
    from axograph.capture.structure import Structure

    return Structure.flatten((args, {}))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls = self.calls + 1
        y = x * self.weight * self.calls
        return y.sum(), y


@on_grids
def test_the_wider_program_runs_on_the_buffers_of_the_call(grid: Grid) -> None:
    module, original = pair(Counting, grid)
    for run in (module, original):
        losses = [run(X), run(X)]
        (losses[0][0] + losses[1][1].pow(2).sum()).backward()
        assert run.calls.item() == 3.0
    assert_same_gradients(module, original)


@on_grids
def test_a_frozen_model_returns_plain_outputs(grid: Grid) -> None:
    module, original = pair(lambda: nn.Linear(4, 4).requires_grad_(False), grid)
    output = module(X)
    assert not output.requires_grad
    torch.testing.assert_close(output, original(X))
    x = X.clone().requires_grad_()
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, original.weight.sum(0).expand(2, 4))
    assert module.weight.grad is None


@on_grids
def test_outputs_may_be_changed_in_place(grid: Grid) -> None:
    module, original = pair(lambda: nn.Linear(4, 4), grid)
    x = torch.randn(2, 3, 4)
    for run in (module, original):
        output = run(x)
        output += 1
        output.mul_(2)
        output.pow(2).sum().backward()
    assert_same_gradients(module, original)


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).exp()


def test_changing_an_output_that_backward_needs_is_refused_as_by_torch() -> None:
    for run in pair(Reused, (1, 1, 1, 1)):
        output = run(X)
        with pytest.raises(RuntimeError, match=r"in-?place"):
            output.mul_(2).sum().backward()


def test_a_parameter_that_changes_between_forward_and_backward_is_refused_as_by_torch() -> None:
    for run in pair(Net, (1, 1, 1, 1)):
        loss = run(X)[0]
        with torch.no_grad():
            run.outer.weight.add_(1)  # type: ignore[union-attr, operator]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_the_gradient_of_a_gradient_is_refused() -> None:
    module = axograph.parallelize(Net(), (1, 1, 1, 1))
    x = X.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        torch.autograd.grad(module(x)[0], x, create_graph=True)


def test_backward_may_run_twice_where_the_graph_is_retained_and_only_there() -> None:
    module, original = pair(Net, (1, 1, 1, 1))
    for run in (module, original):
        loss = run(X)[0]
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert_same_gradients(module, original)


@on_grids
def test_a_checkpointed_call_gives_the_same_gradients(grid: Grid) -> None:
    module, original = pair(Net, grid)
    for run in (module, original):
        checkpoint(run, X.clone().requires_grad_(), use_reentrant=False)[0].backward()
    assert_same_gradients(module, original)


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return self.linear(x)  # type: ignore[no-any-return]


@on_grids
def test_an_input_that_the_model_changes_is_changed_without_gradients_and_refused_with(grid: Grid) -> None:
    module, original = pair(Changing, grid)
    ours, theirs = X.clone(), X.clone()
    with torch.no_grad():
        torch.testing.assert_close(module(ours), original(theirs))
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, X + 1)
    with pytest.raises(UnsupportedError, match="changes one of its inputs in place") as refusal:
        module(ours)
    assert refusal.value.asked == "input 0 changed in place"


def test_autocast_is_that_of_the_call() -> None:
    module, original = pair(lambda: nn.Linear(4, 4), (1, 1, 1, 1))
    for run in (module, original):
        with torch.autocast("cpu", torch.bfloat16):
            output = run(X)
        assert output.dtype == torch.bfloat16
        output.float().sum().backward()
        assert run.weight.grad.dtype == torch.float32  # type: ignore[union-attr]
    assert_same_gradients(module, original)
    assert module(X).dtype == torch.float32


# ---- copies


def copied(module: ParallelModule) -> ParallelModule:
    return copy.deepcopy(module)


def pickled(module: ParallelModule) -> Any:
    return pickle.loads(pickle.dumps(module))


@on_grids
@pytest.mark.parametrize("how", [copied, pickled])
def test_a_copy_is_a_module_of_its_own(how: Callable[[ParallelModule], Any], grid: Grid) -> None:
    module = axograph.parallelize(Net(), grid)
    expected = module(X)[1]
    other = how(module)
    assert compilations(other) == 0
    torch.testing.assert_close(other(X)[1], expected)
    with torch.no_grad():
        other.outer.bias.add_(1)
    torch.testing.assert_close(other(X)[1], expected + 1)
    torch.testing.assert_close(module(X)[1], expected)


class Views(nn.Module):
    """Outputs that share storage: with each other, with an input, and with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.layer(x)
        return y, y.flatten(), y, x, self.layer.weight.T, y.std()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (3, 0), (4,), (5,), (1, 5), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 1, 1)], ids=str)
def test_outputs_that_are_views_of_each_other_keep_their_gradients(
    used: tuple[int, ...], grid: tuple[int, int, int, int]
) -> None:
    model = Views().double()
    original = copy.deepcopy(model)
    module = axograph.parallelize(model, grid=grid)
    inputs = [torch.arange(8.0).reshape(2, 4).double().requires_grad_() for _ in range(2)]
    for call, x in zip((module, original), inputs, strict=True):
        outputs = call(x)
        sum(outputs[i].pow(2).sum() for i in used).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(module.layer.weight.grad, original.layer.weight.grad)
    ours, theirs = (torch.zeros_like(x) if x.grad is None else x.grad for x in inputs)
    torch.testing.assert_close(ours, theirs)
