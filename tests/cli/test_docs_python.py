"""Python on the pages is Python, and its names exist: modules, members and keywords of tilewise.

Blocks that run as they stand have tests of their own: the README's and those of tutorials. The others call a GPU, a
server or an object that the page's reader has, so only their names are checked here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.test_examples import PAGES

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_QUOTING = [
    page for page in PAGES if not page.stem.startswith("adding-")
]  # those quote tests/extending, which compares


def blocks(page: Path) -> list[ast.Module]:
    """Return the parsed Python blocks of a page; ``(...)`` stands for parameters shown before."""
    return [ast.parse(text.replace("(...)", "()")) for text in _BLOCK.findall(page.read_text())]


def missing(tree: ast.Module) -> Iterator[str]:
    """Yield the names of tilewise that a block uses and that do not exist."""
    modules: dict[str, str] = {}
    used: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewise"):
            used += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            modules |= {a.asname or a.name: a.name for a in node.names if a.name.startswith("tilewise")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            used.append((modules[ast.unparse(node.value)], node.attr))
    yield from (f"{module}.{name}" for module, name in used if not _exists(module, name))


def _exists(module: str, name: str) -> bool:
    face = importlib.import_module(module)
    if name in getattr(face, "__all__", ()):  # without loading it, which may need an extra
        return True
    return hasattr(face, name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("page", _QUOTING, ids=lambda page: page.stem)
def test_a_page_names_what_exists(page: Path) -> None:
    assert [name for tree in blocks(page) for name in missing(tree)] == []


def test_a_wrong_name_is_found() -> None:
    wrong = "import tilewise.torch as tw\nfrom tilewise.ops import Gone\ntw.conv9d(x)\ntw.conv2d(x)"
    assert list(missing(ast.parse(wrong))) == ["tilewise.ops.Gone", "tilewise.torch.conv9d"]
