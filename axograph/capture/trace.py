"""Capture: an unmodified module and its inputs become one joint forward and backward program.

The module is run once on fake tensors, so that neither its size nor its device matters.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import fx, nn

from axograph.capture.decompositions import BY_TORCH, DECOMPOSITIONS
from axograph.capture.draws import declare_key, give_sites, show_draws
from axograph.capture.program import FACTS, Facts, Input, Output, Program, facts, tensor_text
from axograph.capture.structure import Structure
from axograph.errors import CaptureError, UnsupportedError
from axograph.torch_private import (
    checkpoint_number,
    checkpoints_numbered,
    data_dependent_errors,
    describe_input,
    describe_output,
    export_joint,
    fake_tensor_mode,
    graph_module,
    outside_fake_mode,
)

Differentiable = Literal["loss", "all"]
"""Which outputs gradients are taken of: the floating-point scalars where there are any, or all floating-point ones."""

_TORCH_FOLDER = str(Path(inspect.getfile(torch)).parent)
_OWN_FOLDER = str(Path(__file__).parent.parent)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+(?:\n(?!\s*File )\s*(?P<code>[^\n]*))?')


@dataclass(frozen=True, slots=True)
class _Told:
    """What the flat list of outputs is."""

    structure: Structure
    differentiable: tuple[int, ...]
    assigned: tuple[str, ...]
    """The buffers whose new values follow the outputs."""


class _Flat(nn.Module):
    """The model as a function of a flat list of tensors."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Structure,
        differentiable: Differentiable,
        tell: Callable[[_Told], None],
    ) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.differentiable = differentiable
        self.tell = tell

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.inputs.unflatten(tensors)
        before = _buffers(self.model)
        found, outputs = Structure.flatten(self.model(*args, **kwargs))
        assigned = _assigned(before, _buffers(self.model))
        floats = [i for i, t in enumerate(found) if t.requires_grad]
        losses = [i for i in floats if found[i].dim() == 0]
        kept = losses if self.differentiable == "loss" and losses else floats
        self.tell(_Told(outputs, tuple(kept), tuple(assigned)))
        # An output that is a view of another has no tangent of its own, so it would lose its gradient: a copy has.
        return (*(t.clone() if i in kept else t.detach() for i, t in enumerate(found)), *assigned.values())


def capture(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    device: torch.device | str | None = None,
    differentiable: Differentiable = "loss",
) -> Program:
    """The joint program of a model called with these inputs, in the grad mode and train/eval mode of now.

    Inputs may be real, fake or meta tensors, nested in any containers; shapes are specialised. `device` is where a
    model on the meta device will run (default: the CPU). Raises `CaptureError` with the model's own line.
    """
    tensors, structure = Structure.flatten((tuple(args), dict(kwargs or {})))
    device = torch.device(device) if device is not None else _device(model)
    mode = fake_tensor_mode()
    seen: list[_Told] = []
    flat = _Flat(model, structure, differentiable, seen.append)
    plain = torch.autograd.graph.saved_tensors_hooks(_same, _same)  # those of the caller are not for the capture
    with outside_fake_mode(), _fake_state(model, mode, device), plain, contextlib.ExitStack() as stack:
        fakes = tuple(_fake(tensor, mode, device) for tensor in tensors)
        try:
            with checkpoints_numbered():
                exported = torch.export.export(flat, fakes, strict=False).module(check_guards=False)
            joint = export_joint(stack, show_draws(exported), fakes, DECOMPOSITIONS, BY_TORCH)
        except CaptureError:
            raise
        except Exception as error:
            raise _refusal(model, tensors, error) from error
    try:
        return _program(joint, structure, seen[0], model)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"{type(model).__name__} has operators with side effects that must stay in order",
            asked=f"the joint graph of {type(model).__name__}",
            given=str(error),
            rule="operators make tensors from tensors; printing and checks of values cannot be placed on a grid",
            remedy="remove prints and assertions on values from the forward, or use operators without checks "
            "(such as torch.linalg.inv_ex instead of torch.linalg.inv)",
        ) from error


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _device(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type != "meta":
            return tensor.device
    return torch.device("cpu")


def _fake(tensor: torch.Tensor, mode: Any, device: torch.device) -> torch.Tensor:
    with mode:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _fake_state(model: nn.Module, mode: Any, device: torch.device) -> Iterator[None]:
    """Put fake tensors in the places of all parameters and buffers; tied ones stay tied."""
    fakes: dict[int, torch.Tensor] = {}
    saved: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for module in model.modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table in tables:
                for name, tensor in list(table.items()):
                    if tensor is None:
                        continue
                    if id(tensor) not in fakes:
                        fake = _fake(tensor, mode, device)
                        is_parameter = isinstance(tensor, nn.Parameter)
                        fakes[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                    saved.append((table, name, tensor))
                    table[name] = fakes[id(tensor)]
        yield
    finally:
        for table, name, tensor in saved:
            table[name] = tensor


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        f"{path}.{name}".lstrip("."): b
        for path, m in model.named_modules()
        for name, b in m._buffers.items()
        if b is not None
    }


def _assigned(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The buffers that a model replaced, as in `self.buffer = new`, rather than changed in place."""
    found = {name: after[name].detach() for name, old in before.items() if name in after and after[name] is not old}
    for name, new in found.items():
        if (new.shape, new.dtype) != (before[name].shape, before[name].dtype):
            raise TypeError(f"buffer {name} was {tensor_text(before[name])} and is replaced by {tensor_text(new)}")
    return found


def _program(joint: fx.GraphModule, inputs: Structure, told: _Told, model: nn.Module) -> Program:
    """Rewrite the exported graph with flat placeholders, constants as inputs, and our facts on each node."""
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    names = _first_names(model)
    table = _inputs(joint, graph, made, model, names)
    constants = _constants(joint, graph, made)
    table += [Input(kind="constant", target=name) for name in constants]
    key, declared = declare_key(joint.graph, graph)
    table += declared
    for node in joint.graph.nodes:
        if node.op == "call_function":
            made[node] = graph.node_copy(node, made.__getitem__)
    give_sites(graph, key)
    results, kinds = _outputs(joint, made, names, told)
    graph.output(tuple(results))
    _record_facts(graph)
    tangents = {declared.target for declared in table if declared.kind == "tangent"}
    assert tangents == set(told.differentiable), "every output that takes gradients has its tangent"
    return Program(
        graph_module=graph_module(graph, "Program", joint),
        inputs=tuple(table),
        outputs=tuple(kinds),
        input_structure=inputs,
        output_structure=told.structure,
        constants=constants,
        differentiable=told.differentiable,
    )


def _inputs(
    joint: fx.GraphModule, graph: fx.Graph, made: dict[fx.Node, fx.Node], model: nn.Module, names: dict[str, str]
) -> list[Input]:
    """Declare each parameter, buffer, user input and tangent once; tied parameters are one input."""
    table: list[Input] = []
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    declared: dict[tuple[str, str | int], fx.Node] = {}
    for node in joint.graph.nodes:
        if node.op != "placeholder":
            continue
        kind, target = describe_input(node)
        name = names.get(_without_wrapper(target), "") if isinstance(target, str) else target
        if (kind, name) not in declared:
            declared[kind, name] = _placeholder(graph, kind, name)
            declared[kind, name].meta = {"val": node.meta["val"]}
            trains = kind == "parameter" and name not in frozen
            table.append(Input(kind=kind, target=name, requires_grad=trains))  # type: ignore[arg-type]
        made[node] = declared[kind, name]
    return table


def _constants(joint: fx.GraphModule, graph: fx.Graph, made: dict[fx.Node, fx.Node]) -> dict[str, torch.Tensor]:
    """Declare the tensors that the model made or holds outside its buffers, by name."""
    found: dict[str, torch.Tensor] = {}
    declared: dict[str, fx.Node] = {}
    for node in joint.graph.nodes:
        if node.op != "get_attr":
            continue
        name = str(node.target)
        if name not in found:
            held: Any = functools.reduce(getattr, name.split("."), joint)
            found[name] = held
            declared[name] = _placeholder(graph, "constant", name.lstrip("_"))
            declared[name].meta = {"val": found[name]}
        made[node] = declared[name]
    return found


def _outputs(
    joint: fx.GraphModule, made: dict[fx.Node, fx.Node], names: dict[str, str], told: _Told
) -> tuple[list[fx.Node | None], list[Output]]:
    """The results, and what each of them is."""
    results: list[fx.Node | None] = []
    kinds: list[Output] = []
    output = joint.graph.output_node()
    returned: Any = output.args[0]
    for result, described in zip(returned, output.meta["desc"], strict=True):
        what = describe_output(described)
        if what is None or (what[0] == "gradient" and result is None):
            continue
        kind, target = what
        name = names.get(_without_wrapper(target), "") if isinstance(target, str) else target
        if kind == "user" and int(target) >= told.structure.count:
            kind, name = "buffer", names[told.assigned[int(target) - told.structure.count]]
        kinds.append(Output(kind=kind, target=name))  # type: ignore[arg-type]
        results.append(made[result] if isinstance(result, fx.Node) else None)
    return results, kinds


def _first_names(model: nn.Module) -> dict[str, str]:
    """For each name of a parameter or buffer, the first name of the same tensor: tied ones are one input."""
    first: dict[int, str] = {}
    names = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names


def _placeholder(graph: fx.Graph, kind: str, target: str | int) -> fx.Node:
    """An input under a name that Python takes as an argument, and that no other input has."""
    node = graph.placeholder(re.sub(r"\W", "_", f"{kind}_{target}"))
    node.target = node.name
    return node


def _without_wrapper(path: str) -> str:
    return path.removeprefix("model").removeprefix(".")


def _record_facts(graph: fx.Graph) -> None:
    """Module path, source line, phase, and for each backward node the forward node behind it."""
    forward: dict[int, str] = {}
    backward: set[fx.Node] = set()
    for node in graph.nodes:
        tangent = node.op == "placeholder" and node.name.startswith("tangent")
        is_backward = tangent or bool(node.meta.get("autograd_backward"))
        is_backward = is_backward or any(argument in backward for argument in node.all_input_nodes)
        if is_backward:
            backward.add(node)
        number = node.meta.get("seq_nr")
        if not is_backward and number is not None:
            forward.setdefault(number, node.name)
        maker = next((facts(argument) for argument in node.all_input_nodes), Facts())
        source = source_line(node.meta.get("stack_trace") or "")
        node.meta[FACTS] = Facts(
            path=_module_path(node) or ("" if source else maker.path),
            source=source or ("" if _module_path(node) else maker.source),
            phase="backward" if is_backward else "forward",
            forward=forward.get(number) if is_backward and number is not None else None,
            checkpoint=None if is_backward else checkpoint_number(node),
        )


def _module_path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    last = next(reversed(stack.values()), ("",)) if stack else ("",)
    return _without_wrapper(re.sub(r"@\d+", "", str(last[0])))


def source_line(stack_trace: str) -> str:
    """The innermost line of a stack trace that is the model's own."""
    frames = [m for m in _FRAME.finditer(stack_trace) if _is_model_code(m["file"])]
    if not frames:
        return ""
    frame = frames[-1]
    code = (frame["code"] or "").split("Gradient addition node")[0].strip()
    return f"{Path(frame['file']).name}:{frame['line']}, {code}"


def _is_model_code(file: str) -> bool:
    return not file.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<"))


def _refusal(model: nn.Module, tensors: Sequence[torch.Tensor], error: Exception) -> CaptureError:
    name = type(model).__name__
    reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
    rule, remedy = _ON_CONTENTS if _asks_for_contents(error) else _ON_INPUTS
    return CaptureError(
        f"{name} cannot be captured as one graph",
        asked=f"the joint graph of {name}, for the inputs {', '.join(map(tensor_text, tensors)) or '(none)'}",
        given=f"{_line_of(error) or 'a line inside torch'}\n{type(error).__name__}: {reason}",
        rule=rule,
        remedy=remedy,
    )


_ON_CONTENTS = (
    "the model's operations depend on shapes and Python values, never on the contents of tensors",
    "replace the branch by torch.where or torch.cond, .item() by tensor arithmetic, and a Python loop over values by "
    "one over shapes",
)
_ON_INPUTS = (
    "the model itself accepts the inputs, and torch.export can follow what it does with them",
    "call the unmodified model on these inputs; if it accepts them, torch.export.export(model, inputs, strict=False) "
    "tells what it cannot follow",
)


def _asks_for_contents(error: BaseException) -> bool:
    """Whether an error came from a fake tensor that was asked for what it contains."""
    while error is not None:
        if isinstance(error, data_dependent_errors()) or "data-dependent" in str(error).lower():
            return True
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return False


def _line_of(error: Exception) -> str:
    """The innermost line of the model's own that an error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_model_code(f.filename)]
    inside = [f for f in frames if "forward" in f.name] or frames
    return f"{inside[-1].filename}:{inside[-1].lineno}, {inside[-1].line}" if inside else source_line(str(error))
