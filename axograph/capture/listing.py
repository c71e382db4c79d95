"""A program as readable code: placements, global and local shapes, and the model's line above each group of nodes."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from axograph.capture.program import DTYPE_NAMES, Program, facts, values


def listing(program: Program) -> str:
    """The text of a program, one node a line; of a split program, both halves."""
    if program.backward is not None:
        return f"# forward\n{_half(program)}# backward\n{_half(program.backward)}"
    return _half(program)


def _half(program: Program) -> str:
    lines: list[str] = []
    placeholders = program.placeholders()
    for node, declared in zip(placeholders, program.inputs, strict=True):
        lines.append(f"{node.name}: {_type(node)} = input {declared.kind} {declared.target}")
    last = ""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        about = facts(node)
        header = " ".join(part for part in (about.path, about.source and f"({about.source})") if part)
        header = f"# {about.phase} {header}".rstrip()
        if header != last:
            lines.append(header)
            last = header
        lines.append(f"{node.name}: {_type(node)} = {_call(node)}{_remark(node)}")
    returned = (
        f"{result.name if result is not None else None} -> {declared.kind} {declared.target}"
        for result, declared in zip(program.results(), program.outputs, strict=True)
    )
    return "\n".join([*lines, *(f"return {text}" for text in returned)]) + "\n"


def _type(node: fx.Node) -> str:
    tensors = values(node)
    placements = facts(node).placements
    if not tensors:
        return str(type(node.meta.get("val")).__name__)
    texts = []
    for i, tensor in enumerate(tensors):
        name = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
        local = f"{name}{list(tensor.shape)}"
        placed = placements[i] if i < len(placements) else None
        if placed is not None:
            placement = replace(placed.simplified(), dtype=name)
            is_global = placement.shape == tuple(tensor.shape)
            texts.append(str(placement) if is_global else f"{placement} -> {local}")
        else:
            texts.append(local)
    return texts[0] if len(texts) == 1 else f"({'; '.join(texts)})"


def _call(node: fx.Node) -> str:
    target = str(node.target).removesuffix(".default")
    if not isinstance(node.target, str) and getattr(node.target, "__name__", "") == "getitem":
        return f"{node.args[0]}[{node.args[1]}]"
    arguments = [str(argument) for argument in node.args]
    arguments += [f"{key}={argument}" for key, argument in node.kwargs.items()]
    return f"{target}({', '.join(arguments)})"


def _remark(node: fx.Node) -> str:
    about = facts(node)
    remarks = []
    if about.collective is not None:
        moved = about.collective
        remarks.append(f"{moved.kind} over {'.'.join(moved.axes)}, {moved.size_bytes:.0f} bytes")
    if about.chunk is not None:
        remarks.append(f"chunk {about.chunk + 1}")
    if about.exposed is not None:
        remarks.append(str(about.exposed))
    if about.reason:
        remarks.append(about.reason)
    return f"  # {'; '.join(remarks)}" if remarks else ""
