"""Every private torch name that the project uses, in one place. Tested with torch 2.13.

Nothing else in the package may import a private torch module; `self_test` tells whether they still are where we
expect them and still take the arguments that we pass.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

TESTED_TORCH = "2.13"
"""The release of torch that the private names below were tested with."""


def fake_tensor_mode() -> Any:
    """A mode under which tensors have shape, dtype and device, but no storage."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def outside_fake_mode() -> Any:
    """A context in which the caller's own fake tensor mode, if there is one, is not active."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no storage because it is fake."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def export_joint(
    stack: ExitStack,
    module: torch.nn.Module,
    args: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Any],
    by_torch: Sequence[str] = (),
) -> fx.GraphModule:
    """The forward and, where gradients are on, backward aten graph of an exported module, functionalised.

    Placeholders and outputs carry descriptors, read by `describe_input` and `describe_output`. The operators of aten
    named in `by_torch` are taken apart as torch does it, where `decompositions` does not say otherwise.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    table = {**_decompositions(by_torch), **decompositions}
    joint = aot_export_joint_with_descriptors(stack, module, args, {}, decompositions=table)
    graph_module: fx.GraphModule = joint.graph_module
    return graph_module


def _decompositions(names: Sequence[str]) -> dict[Any, Callable[..., Any]]:
    from torch._decomp import get_decompositions

    return get_decompositions([getattr(torch.ops.aten, name) for name in names])


def describe_input(node: fx.Node) -> tuple[str, str | int]:
    """What a placeholder of the joint graph is: ("parameter" | "buffer", name) or ("user" | "tangent", index)."""
    from torch._functorch._aot_autograd import descriptors as d

    described = node.meta["desc"]
    if isinstance(described, d.ParamAOTInput):
        return "parameter", described.target
    if isinstance(described, d.BufferAOTInput):
        return "buffer", described.target
    if isinstance(described, d.PlainAOTInput):
        return "user", described.idx
    if isinstance(described, d.TangentAOTInput) and isinstance(described.output, d.PlainAOTOutput):
        return "tangent", described.output.idx
    raise NotImplementedError(f"an input of kind {described}")


def describe_output(described: Any) -> tuple[str, str | int] | None:
    """What an output of the joint graph is: ("user", index), ("buffer", name), ("gradient", name or index) or None."""
    from torch._functorch._aot_autograd import descriptors as d

    if described is None:
        return None
    if isinstance(described, d.PlainAOTOutput):
        return "user", described.idx
    if isinstance(described, d.InputMutationAOTOutput) and isinstance(described.mutated_input, d.BufferAOTInput):
        return "buffer", described.mutated_input.target
    if isinstance(described, d.InputMutationAOTOutput) and isinstance(described.mutated_input, d.PlainAOTInput):
        return "mutation", described.mutated_input.idx
    if isinstance(described, d.GradAOTOutput):
        of = described.grad_of
        if isinstance(of, d.ParamAOTInput | d.BufferAOTInput):
            return "gradient", of.target
        if isinstance(of, d.PlainAOTInput):
            return "gradient", of.idx
    raise NotImplementedError(f"an output of kind {described}")


_CHECKPOINT = "axograph_checkpoint"


@contextmanager
def checkpoints_numbered() -> Iterator[None]:
    """A context for a trace in which checkpointed calls just run, their operators marked with the number of the call.

    Of calls inside each other, the outermost counts. A reentrant one gives, as in torch, no gradients where none of
    its inputs takes any. What a policy would save (`context_fn`) is not looked at.
    """
    import torch.utils.checkpoint as module

    numbers = itertools.count()
    within: list[int] = []

    @contextmanager
    def marked() -> Iterator[None]:
        from torch.fx.traceback import annotate, preserve_node_meta

        if within:
            yield
            return
        within.append(next(numbers))
        try:
            with preserve_node_meta(), annotate({_CHECKPOINT: within[0]}):
                yield
        finally:
            within.pop()

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            asked = any(isinstance(given, torch.Tensor) and given.requires_grad for given in args)
            with marked(), torch.set_grad_enabled(asked and torch.is_grad_enabled()):
                return function(*args)

    def not_reentrant(*_: Any, **__: Any) -> Iterator[None]:
        with marked():
            yield

    names = {"CheckpointFunction": Reentrant, "_checkpoint_without_reentrant_generator": not_reentrant}
    known = {name: getattr(module, name) for name in names}
    try:
        for name, other in names.items():
            setattr(module, name, other)
        yield
    finally:
        for name, own in known.items():
            setattr(module, name, own)


def checkpoint_number(node: fx.Node) -> int | None:
    """The number of the checkpointed call that an operator was traced in."""
    number: int | None = (node.meta.get("custom") or {}).get(_CHECKPOINT)
    return number


def data_dependent_errors() -> tuple[type[Exception], ...]:
    """What is raised where the contents of a tensor would decide how a trace goes on."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)


def tree_flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of registered containers, and the structure around them."""
    from torch.utils import _pytree

    return _pytree.tree_flatten(value)


def tree_unflatten(leaves: Sequence[Any], structure: Any) -> Any:
    """The inverse of `tree_flatten`."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(list(leaves), structure)


def graph_module(graph: fx.Graph, name: str, attributes: Any = None) -> fx.GraphModule:
    """A graph as a module. Its Python code is written when it is first called or printed: most are neither."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(attributes if attributes is not None else torch.nn.Module(), graph, name)


def local_tensor(tensor: Any) -> torch.Tensor:
    """The shard of a DTensor that this rank holds, without a copy and outside autograd."""
    shard: torch.Tensor = tensor._local_tensor
    return shard


def move_shard(tensor: Any, like: Any) -> None:
    """Let a DTensor hold the shard, and lie at the placements, of another of the same global shape."""
    tensor._local_tensor = like._local_tensor
    tensor._spec = like._spec


def strided_shard(dim: int, split_factor: int) -> Any:
    """The DTensor placement of a dim that is cut inside: each of `split_factor` equal blocks is cut."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=split_factor)


def collective_op(name: str) -> Any:
    """An operator of functional collectives, such as `all_reduce`, with an asynchronous start and explicit wait."""
    import torch.distributed._functional_collectives  # registers the operators

    return getattr(torch.ops._c10d_functional, name).default


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """A context in which `torch.vmap` does not warn about operators that it runs in a loop."""
    warn: Callable[[bool], None] = vars(torch._C._functorch)["_set_vmap_fallback_warning_enabled"]
    warn(False)
    try:
        yield
    finally:
        warn(True)


def keeps_graph() -> bool:
    """Inside a backward pass: whether it was started with `retain_graph=True`, and may run again."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def _marked_calls() -> list[int | None]:
    """The numbers of a checkpointed call of either kind, as operators traced in them have them."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.checkpoint import checkpoint

    def twice(x: torch.Tensor) -> Any:
        return checkpoint(torch.cos, checkpoint(torch.sin, x, use_reentrant=False), use_reentrant=True)

    with checkpoints_numbered():
        traced = make_fx(twice)(torch.ones(1))
    return [checkpoint_number(node) for node in traced.graph.nodes if node.op == "call_function"]


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """A context for Inductor's modules, which warn of other parts of torch when they are first imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def missing_compiler(device: torch.device) -> str | None:
    """What Inductor lacks on this machine to compile for a device; None where it lacks nothing."""
    with _without_deprecations():
        from torch._inductor import cpp_builder, exc
        from torch.utils import _triton
    if device.type == "cpu":
        try:
            cpp_builder.get_cpp_compiler()
        except exc.InvalidCxxCompiler as error:
            return f"no C++ compiler: {error}"
        return None
    return None if _triton.has_triton() else f"no Triton that works, for {device}"


def compile_graph(
    graph: fx.Graph, inputs: Sequence[torch.Tensor], mode: Any
) -> tuple[Callable[[list[Any]], Sequence[Any]], list[torch.Tensor]]:
    """A graph of aten operators without effects, compiled by Inductor for inputs in these layouts (fake tensors).

    The function takes its inputs in a list, which it empties, and draws random numbers as the operators do. Also
    returned are fake outputs: the compiled ones have their shapes and strides.
    """
    with ExitStack() as stack:
        stack.enter_context(_without_deprecations())
        from torch._inductor import compile_fx, config, decomposition
        from torch._inductor.fx_passes.joint_graph import joint_graph_passes
        from torch.fx.experimental.proxy_tensor import make_fx

        settings = config.patch({"fallback_random": True, "size_asserts": True})
        for context in (mode, settings, torch.inference_mode(False), torch.no_grad()):
            stack.enter_context(context)
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device_type=device, enabled=False))
        run = torch.func.functionalize(fx.Interpreter(fx.GraphModule({}, graph)).run)
        traced = make_fx(run, decomposition_table=decomposition.select_decomp_table())(*inputs)
        traced.graph.eliminate_dead_code()
        output = traced.graph.output_node()
        results: Any = output.args[0]
        outputs = [node.meta["val"] for node in results]
        joint_graph_passes(traced)
        output.meta["user_visible_output_idxs"] = list(range(len(outputs)))
        compile_fx.record_original_output_strides(traced)
        compiled: Callable[[list[Any]], Sequence[Any]] = compile_fx.compile_fx_inner(traced, list(inputs))
    return compiled, outputs


def self_test() -> list[str]:
    """What no longer holds of the private names; empty when all is well."""
    broken = []
    try:
        from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

        known = inspect.signature(aot_export_joint_with_descriptors).parameters
        broken += [f"aot_export_joint_with_descriptors has no {n}" for n in ("decompositions",) if n not in known]
        from torch._functorch._aot_autograd import descriptors

        wanted = ("ParamAOTInput", "BufferAOTInput", "PlainAOTInput", "TangentAOTInput", "PlainAOTOutput",
                  "InputMutationAOTOutput", "GradAOTOutput")  # fmt: skip
        broken += [f"descriptors has no {name}" for name in wanted if not hasattr(descriptors, name)]
        leaves, structure = tree_flatten({"a": [1, 2]})
        if tree_unflatten(leaves, structure) != {"a": [1, 2]}:
            broken.append("pytree does not round-trip")
        with fake_tensor_mode():
            if not is_fake(torch.empty(2)):
                broken.append("the fake tensor mode makes real tensors")
            with outside_fake_mode():
                if is_fake(torch.empty(2)):
                    broken.append("the fake tensor mode cannot be left")
        with _without_deprecations():
            from torch._inductor import compile_fx, config, cpp_builder, decomposition, exc
            from torch._inductor.fx_passes.joint_graph import joint_graph_passes  # noqa: F401
            from torch.utils import _triton

        used = ((compile_fx, "compile_fx_inner"), (compile_fx, "record_original_output_strides"), (config, "patch"),
                (config, "fallback_random"), (config, "size_asserts"), (decomposition, "select_decomp_table"),
                (cpp_builder, "get_cpp_compiler"), (exc, "InvalidCxxCompiler"), (_triton, "has_triton"))  # fmt: skip
        broken += [f"{module.__name__} has no {name}" for module, name in used if not hasattr(module, name)]
        strided_shard(0, 3)
        keeps_graph()
        with quiet_vmap():
            pass
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
                     "wait_tensor"):  # fmt: skip
            collective_op(name)
        _decompositions(("mse_loss",))
        data_dependent_errors()
        if _marked_calls() != [0, 1]:
            broken.append("operators of checkpointed calls are not marked")
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        broken.append(str(error))
    return broken
