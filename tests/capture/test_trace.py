"""Capture: what becomes an input, what becomes an output, what each node knows, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from axograph.capture.program import Program, facts
from axograph.capture.trace import capture, source_line
from axograph.errors import CaptureError, UnsupportedError
from axograph.torch_private import fake_tensor_mode
from tests.zoo import BY_NAME, MLP, VOCABULARY


def inputs_of(program: Program, kind: str) -> list[str | int]:
    return [declared.target for declared in program.inputs if declared.kind == kind]


def outputs_of(program: Program, kind: str) -> list[str | int]:
    return [declared.target for declared in program.outputs if declared.kind == kind]


def operators(program: Program) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def wrapped(forward: Callable[..., Any]) -> nn.Module:
    """A linear layer, and a forward that is given it and the inputs."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return forward(self.linear, *args, **kwargs)

    return Model()


X = torch.arange(8.0).reshape(2, 4)


# ---- inputs


def test_keyword_optional_and_nested_inputs_are_tensors_in_the_order_of_the_call() -> None:
    def forward(linear: nn.Linear, pair: Any, *, scale: Any, mask: Any = None, power: int = 1) -> Any:
        x, rest = pair
        y = linear(x) * scale["by"] + rest[0]
        return y**power if mask is None else y * mask

    args, kwargs = ((X, [torch.ones(4)]),), {"scale": {"by": torch.ones(1)}, "power": 2}
    program = capture(wrapped(forward), args, kwargs)
    assert program.input_structure.paths() == ["0.0.0", "0.0.1.0", "1.scale.by"]
    assert inputs_of(program, "user") == [0, 1, 2]
    assert any("pow" in name for name in operators(program))
    masked = capture(wrapped(forward), args, {**kwargs, "mask": torch.ones(2, 4)})
    assert inputs_of(masked, "user") == [0, 1, 2, 3]
    assert not any("pow" in name for name in operators(masked))


def test_an_input_that_requires_gradients_gets_one() -> None:
    model = wrapped(lambda linear, x: linear(x))
    assert outputs_of(capture(model, (X,)), "gradient") == ["linear.weight", "linear.bias"]
    with_gradient = capture(model, (X.clone().requires_grad_(),))
    assert outputs_of(with_gradient, "gradient") == ["linear.weight", "linear.bias", 0]


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_a_model_and_inputs_without_storage_give_the_program_of_real_ones(kind: str) -> None:
    real = capture(MLP(), (torch.zeros(2, 3, 32),))
    with torch.device("meta") if kind == "meta" else fake_tensor_mode():
        program = capture(MLP(), (torch.zeros(2, 3, 32),), device="cpu")
    assert operators(program) == operators(real)
    assert [node.meta["val"].device.type for node in program.placeholders()] == ["cpu"] * len(real.inputs)


def test_tensors_that_the_model_makes_or_holds_are_constants() -> None:
    table = torch.arange(4.0)

    def forward(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return linear(x * table) + torch.tensor([1.0, 2.0, 3.0, 4.0])

    program = capture(wrapped(forward), (X,))
    kinds = [declared.kind for declared in program.inputs]
    assert kinds == ["parameter", "parameter", "user", "tangent", "constant", "constant"]
    by_input = dict(zip(program.inputs, program.placeholders(), strict=True))
    for declared, node in by_input.items():
        if declared.kind == "constant":
            assert node.name == f"constant{declared.target}"
    values = [program.constants[str(name)].tolist() for name in inputs_of(program, "constant")]
    assert values == [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]


# ---- parameters and buffers


def test_parameters_whose_names_differ_in_a_dot_or_are_no_python_names_are_inputs_of_their_own() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ParameterDict({"b": torch.ones(4), "my-scale": torch.ones(4)})
            self.a_b = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.a["b"] * self.a_b * self.a["my-scale"]

    program = capture(Named(), (X,))
    assert inputs_of(program, "parameter") == ["a_b", "a.b", "a.my-scale"]
    names = [node.name for node in program.placeholders()]
    assert names == [node.target for node in program.placeholders()]
    assert names[:3] == ["parameter_a_b", "parameter_a_b_1", "parameter_a_my_scale"]
    output = program.graph_module(*(torch.full((4,), n) for n in (2.0, 3.0, 5.0)), X, torch.ones(2, 4))[0]
    assert torch.equal(output, X * 30)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


def test_tied_parameters_are_one_input_with_one_gradient() -> None:
    program = capture(Tied(), (X,))
    assert inputs_of(program, "parameter") == ["first.weight"]
    assert outputs_of(program, "gradient") == ["first.weight"]
    assert operators(program).count("aten.add.Tensor") == 1


def test_frozen_parameters_have_no_gradient_and_unused_ones_none_either() -> None:
    model = wrapped(lambda linear, x: linear(x))
    model.add_module("unused", nn.Linear(3, 3))
    model.linear.bias.requires_grad_(False)  # type: ignore[union-attr]
    program = capture(model, (X,))
    trains = {declared.target: declared.requires_grad for declared in program.inputs if declared.kind == "parameter"}
    assert trains == {"linear.weight": True, "linear.bias": False, "unused.weight": True, "unused.bias": True}
    assert outputs_of(program, "gradient") == ["linear.weight"]


def test_a_frozen_model_has_no_backward() -> None:
    program = capture(wrapped(lambda linear, x: linear(x)).requires_grad_(False), (X,))
    assert inputs_of(program, "tangent") == outputs_of(program, "gradient") == []
    assert program.differentiable == ()


def test_buffers_changed_in_place_are_outputs() -> None:
    program = capture(MLP(), (torch.zeros(2, 3, 32),))
    assert inputs_of(program, "buffer") == outputs_of(program, "buffer") == ["calls", "average"]


class Assigning(nn.Module):
    """Replaces its buffer rather than writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.weight = nn.Parameter(torch.ones(4))
        self.widen = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight * self.scale
        self.scale = torch.ones(3) if self.widen else self.scale + 1
        return y.sum()


def test_a_buffer_that_is_replaced_is_an_output_too() -> None:
    model = Assigning()
    program = capture(model, (X,))
    assert outputs_of(program, "buffer") == ["scale"]
    assert outputs_of(program, "user") == [0]
    assert model.scale.item() == 2.0


def test_a_buffer_that_is_replaced_by_one_of_another_shape_is_refused() -> None:
    model = Assigning()
    model.widen = True
    with pytest.raises(CaptureError, match=r"buffer scale was f32\[\] and is replaced by f32\[3\]"):
        capture(model, (X,))


def test_batch_norm_updates_its_buffers_in_training_only() -> None:
    model = nn.BatchNorm1d(4)
    statistics = ["running_mean", "running_var", "num_batches_tracked"]
    assert sorted(map(str, outputs_of(capture(model, (X,)), "buffer"))) == sorted(statistics)
    model.eval()
    assert outputs_of(capture(model, (X,)), "buffer") == []


def test_the_model_is_as_it_was_after_its_capture() -> None:
    model = MLP()
    before = [*model.parameters(), *model.buffers()]
    values = [tensor.clone() for tensor in before]
    capture(model, (torch.ones(2, 3, 32),))
    after = [*model.parameters(), *model.buffers()]
    assert all(a is b for a, b in zip(after, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, values, strict=True))


# ---- outputs


@dataclasses.dataclass
class Answer:
    value: torch.Tensor
    note: str = "none"


class Cache:
    """Like a key-value cache: a plain object that holds tensors."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = [keys]
        self.length = 2


OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], list[str]]] = {
    "tensor": (lambda y: y, ["0"]),
    "tuple with None": (lambda y: (y, None, y * 2), ["0", "2"]),
    "nested dict": (lambda y: {"a": y, "b": [y + 1]}, ["a", "b.0"]),
    "dataclass": (lambda y: Answer(y, "seen"), ["value"]),
    "cache inside": (lambda y: {"y": y, "cache": Cache(y * 3)}, ["y", "cache.keys.0"]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_keep_their_structure(name: str) -> None:
    make, paths = OUTPUTS[name]
    program = capture(wrapped(lambda linear, x: make(linear(x))), (X,))
    assert program.output_structure.paths() == paths
    assert outputs_of(program, "user") == list(range(len(paths)))
    rebuilt = program.output_structure.unflatten([torch.full((1,), float(i)) for i in range(len(paths))])
    assert type(rebuilt) is type(make(X))
    if name == "tuple with None":
        assert rebuilt[1] is None
    if name == "dataclass":
        assert rebuilt == Answer(torch.zeros(1), "seen")
    if name == "cache inside":
        assert (type(rebuilt["cache"]), rebuilt["cache"].keys[0].item(), rebuilt["cache"].length) == (Cache, 1.0, 2)


def test_a_hugging_face_output_keeps_its_class_and_its_cache() -> None:
    case = BY_NAME["llama"]
    program = capture(case.model(), (), {**case.inputs(2, 4), "use_cache": True})
    paths = program.output_structure.paths()
    assert paths[:2] == ["loss", "logits"]
    assert len(paths) == 2 + 2 * 2, "keys and values of two layers"
    rebuilt = program.output_structure.unflatten([torch.full((1,), float(i)) for i in range(len(paths))])
    assert type(rebuilt) is transformers.modeling_outputs.CausalLMOutputWithPast
    assert rebuilt.logits.item() == 1.0
    assert type(rebuilt.past_key_values) is transformers.DynamicCache
    assert rebuilt.past_key_values.layers[1].values.item() == 5.0


# ---- gradients


def test_gradients_are_taken_of_the_loss_alone_or_of_all_outputs() -> None:
    def forward(linear: nn.Linear, x: torch.Tensor) -> Any:
        y = linear(x)
        return {"loss": y.sum(), "logits": y, "best": y.argmax(-1)}

    assert capture(wrapped(forward), (X,)).differentiable == (0,)
    assert capture(wrapped(forward), (X,), differentiable="all").differentiable == (0, 1)
    assert inputs_of(capture(wrapped(forward), (X,), differentiable="all"), "tangent") == [0, 1]


def test_without_a_loss_gradients_are_taken_of_all_floating_point_outputs() -> None:
    program = capture(wrapped(lambda linear, x: (linear(x), x.argmax(), linear(x))), (X,))
    assert program.differentiable == (0, 2)


def test_without_gradients_there_is_only_a_forward_graph() -> None:
    with torch.no_grad():
        program = capture(MLP(), (torch.zeros(2, 3, 32),))
    assert {declared.kind for declared in program.outputs} == {"user", "buffer"}
    assert {facts(node).phase for node in program.graph.nodes} == {"forward"}
    assert not any("backward" in name for name in operators(program))


def test_hooks_of_the_caller_on_saved_tensors_do_not_see_the_capture() -> None:
    seen: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        capture(wrapped(lambda linear, x: linear(x).relu()), (X,))
    assert seen == []


# ---- what nodes know


def test_every_operator_has_its_module_and_the_line_of_the_model() -> None:
    program = capture(MLP(), (torch.zeros(2, 3, 32),))
    known = [facts(node) for node in program.graph.nodes if node.op == "call_function"]
    assert all(about.source.startswith("zoo.py:") for about in known)
    assert {about.path for about in known} == {"", "norm", "up", "down"}
    matmuls = [facts(node) for node in program.graph.nodes if "addmm" in str(node.target)]
    assert [about.path for about in matmuls] == ["up", "down"]
    assert all("x + self.down(torch.relu(self.up(self.norm(x))))" in about.source for about in matmuls)


def test_backward_operators_point_to_their_forward_operators() -> None:
    program = capture(wrapped(lambda linear, x: linear(x.exp()).relu().sum()), (X.clone().requires_grad_(),))
    by_name = {node.name: node for node in program.graph.nodes}
    pairs = {}
    for node in program.graph.nodes:
        about = facts(node)
        if about.phase == "backward" and node.op == "call_function":
            assert about.forward is not None, node.name
            assert facts(by_name[about.forward]).phase == "forward"
            pairs[str(node.target)] = str(by_name[about.forward].target)
    assert pairs["aten.threshold_backward.default"] == "aten.relu.default"
    assert pairs["aten.expand.default"] == "aten.sum.default"
    assert pairs["aten.mm.default"] == "aten.addmm.default"
    assert pairs["aten.mul.Tensor"] == "aten.exp.default"


def test_the_source_line_is_the_innermost_one_outside_torch() -> None:
    trace = (
        f'File "/home/me/model.py", line 3, in forward\n    y = self.block(x)\n'
        f'File "/home/me/block.py", line 7, in forward\n    return self.up(x)\n'
        f'File "{torch.__file__}", line 9, in linear\n    return linear(x)\n'
    )
    assert source_line(trace) == "block.py:7, return self.up(x)"
    assert source_line("") == ""


# ---- refusals


def test_a_branch_on_the_contents_of_a_tensor_is_refused_with_its_line() -> None:
    def forward(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if linear(x).sum() > 0:
            return x
        return -x

    with pytest.raises(CaptureError, match="cannot be captured as one graph") as refusal:
        capture(wrapped(forward), (X,))
    assert refusal.value.asked == "the joint graph of Model, for the inputs f32[2, 4]"
    assert "test_trace.py" in refusal.value.given
    assert "if linear(x).sum() > 0:" in refusal.value.given
    assert "never on the contents of tensors" in refusal.value.rule
    assert "torch.where" in refusal.value.remedy


@pytest.mark.parametrize("forward", [lambda linear, x: linear(x) * x.max().item(), lambda linear, x: linear(x)[x > 2]])
def test_reading_a_value_or_a_shape_that_depends_on_values_is_refused_likewise(forward: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError) as refusal:
        capture(wrapped(forward), (X,))
    assert "never on the contents of tensors" in refusal.value.rule


def test_inputs_that_the_model_does_not_take_are_refused_with_its_line() -> None:
    with pytest.raises(CaptureError) as refusal:
        capture(MLP(), (torch.zeros(2, 3, 31),))
    assert refusal.value.asked == "the joint graph of MLP, for the inputs f32[2, 3, 31]"
    assert "zoo.py" in refusal.value.given
    assert "31" in refusal.value.given.splitlines()[-1]
    assert refusal.value.rule.startswith("the model itself accepts the inputs")
    assert refusal.value.remedy.startswith("call the unmodified model on these inputs")


def test_an_error_of_the_model_itself_is_told_as_it_is() -> None:
    def forward(linear: nn.Linear, ids: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"vocabulary of {VOCABULARY}")

    with pytest.raises(CaptureError) as refusal:
        capture(wrapped(forward), (X,))
    assert "ValueError: vocabulary of 96" in refusal.value.given
    assert isinstance(refusal.value.__cause__, ValueError)


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(self.layer(x))


def test_operators_with_ordered_side_effects_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="side effects") as refused:
        capture(Checked(), (torch.rand(4, 4),))
    assert "torch.linalg.inv_ex" in refused.value.remedy
