"""Which of our own files a module needs at run time, found without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


def sources_of(module: str) -> set[str]:
    """Files under ``src`` that `module` imports, directly or not, itself included; lazy imports count as well."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if file is None or file in found:  # another library's, or seen
            continue
        found.add(file)
        waiting += [name.rpartition(".")[0], *_imports(SRC / file)]
    return found


def _file(module: str) -> str | None:
    path = SRC.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if path != SRC and file.is_file():
            return file.relative_to(SRC).as_posix()
    return None


def _imports(file: Path) -> Iterator[str]:
    for node in _at_run_time(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from _at_run_time(child)
