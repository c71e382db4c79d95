"""The rules of the house that a program can check: who imports whom, what stays light, how files look."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "axograph"
FILES = sorted(PACKAGE.rglob("*.py"))

ORDER = (
    ("errors", "torch_private"),
    ("grid",),
    ("placement",),
    ("plan", "plan_file", "plan_difference", "explanation", "cost_model"),
    ("capture",),
    ("pipeline",),
    ("passes",),
    ("codegen", "runtime"),
    ("inspection",),
    ("api",),
    ("axograph",),
    ("integrations", "cli", "memorization"),
)
"""Parts of the package, lowest first. A part imports parts of its own level and below, never from above."""

LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}

PRIVATE_TORCH = PACKAGE / "torch_private.py"
"""The one file that may use private parts of torch."""


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports, at its top or inside functions, as (name in the file, dotted name)."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _imported_parts(path: Path) -> set[str]:
    """The parts of the package that a file imports: `axograph.passes.split` is in `passes`."""
    names = [name.split(".") for _, name in _imports(path) if name.partition(".")[0] == "axograph"]
    return {name[1] if len(name) > 1 and name[1] in LEVEL else "axograph" for name in names}


def _part(path: Path) -> str:
    """The part of the package that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "axograph" if first == "__init__" else first


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_run_one_way(path: Path) -> None:
    part = _part(path)
    assert part in LEVEL, f"give {part} its place in ORDER"
    above = {other for other in _imported_parts(path) if LEVEL[other] > LEVEL[part]}
    assert not above, f"{part} may not import {', '.join(sorted(above))}"


def test_the_cost_model_needs_no_torch() -> None:
    parts, reached = ["cost_model"], {"cost_model"}
    while parts:
        part = parts.pop()
        for path in (path for path in FILES if _part(path) == part):
            assert "torch" not in {name.partition(".")[0] for _, name in _imports(path)}, _name(path)
            parts += _imported_parts(path) - reached
            reached |= _imported_parts(path)
    assert reached >= {"cost_model", "grid"}


def _dotted(node: ast.expr) -> str:
    """`torch.fx.Node` for that expression; what is not a chain of names is `?`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _private_torch(path: Path) -> set[str]:
    """The private names of torch that a file imports or reaches into; operators, `torch.ops._...`, are not meant."""
    imported = dict(_imports(path))
    used = set(imported.values())
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute):
            root, _, rest = _dotted(node).partition(".")
            used.add(f"{imported.get(root, root)}.{rest}")
    return {name for name in used if re.match(r"torch\.(?!ops\.)(.*\.)?_(?!_)", name)}


@pytest.mark.parametrize("path", [path for path in FILES if path != PRIVATE_TORCH], ids=_name)
def test_private_parts_of_torch_are_used_in_one_file_only(path: Path) -> None:
    assert _private_torch(path) == set()


def test_the_file_of_private_parts_is_seen_as_such() -> None:
    assert _private_torch(PRIVATE_TORCH)


def test_importing_axograph_is_light_and_silent() -> None:
    program = (
        "import sys, torch; before = set(sys.modules); import axograph; print(*(sys.modules.keys() - before))\n"
        "assert not torch.distributed.is_initialized() and torch.get_default_dtype() == torch.float32"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    added = set(done.stdout.split())
    assert "axograph" in added
    heavy = {"rich", "sympy", "torch._dynamo", "torch._inductor", "transformers"}
    assert added & heavy == set()


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_file_has_a_telling_name_and_at_most_500_lines(path: Path) -> None:
    assert not {"common", "core", "helpers", "misc", "utils"} & {path.stem, *path.relative_to(PACKAGE).parts}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize("link", ["passes", "cost_model"])
def test_the_doors_at_the_top_lead_into_the_package(link: str) -> None:
    door = PACKAGE.parent / link
    assert door.is_symlink()
    assert door.readlink() == Path("axograph") / link
