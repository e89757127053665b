"""The files of ours that a module needs at run time, found without importing anything.

A name that comes through a face counts as an import of the module that defines it, not of the whole package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


def sources_of(module: str) -> set[str]:
    """Return the files under ``src`` that `module` imports, directly or not, itself included; lazy imports count."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        file = _file(waiting.pop())
        if file is None or file in found:  # another library's, or seen
            continue
        found.add(file)
        waiting += _imports(SRC / file)
    return found


def _file(module: str) -> str | None:
    path = SRC.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if path != SRC and file.is_file():
            return file.relative_to(SRC).as_posix()
    return None


def _imports(file: Path) -> Iterator[str]:
    if file.name == "__init__.py":  # a face: its names are resolved where they are imported
        return
    for node in _at_run_time(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (_origin(node.module, alias.name) for alias in node.names)


def _origin(module: str, name: str) -> str:
    """Return the module that defines `name`, as `module` hands it on."""
    if _file(f"{module}.{name}"):
        return f"{module}.{name}"
    return _handed_on(module).get(name, module)


@cache
def _handed_on(module: str) -> dict[str, str]:
    """Return the module behind each name of a face, imported at once or under ``if TYPE_CHECKING``."""
    file = _file(module)
    if file is None or not file.endswith("__init__.py"):
        return {}
    nodes = [node for node in ast.walk(ast.parse((SRC / file).read_text())) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: _origin(node.module, alias.name)
        for node in nodes
        if node.module
        for alias in node.names
    }


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those under ``if TYPE_CHECKING``."""
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from _at_run_time(child)
