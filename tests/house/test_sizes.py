"""Sizes that keep a file readable at one sitting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from house.sources import MODULES, SRC, folders, name_of, tree_of

TABLES_OF_DATA = {"collect/problems/_networks.py"}  # layers of networks, one per line
# Drop-in functions take PyTorch's and Triton's own parameters.
SIGNATURES_OF_OTHERS = {"conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d", "autotune"}
MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 50
MOST_PARAMETERS = 6
MOST_FILES_OF_A_PACKAGE = 15
MOST_ANY = 300


def _functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _is_compiled(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether Triton compiles it: its parameters are the arguments of the launch."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


@pytest.mark.parametrize("folder", folders(MODULES), ids=name_of)
class TestPackage:
    def test_has_few_files(self, folder: Path) -> None:
        assert len([file for file in folder.glob("*.py") if file.name != "__init__.py"]) <= MOST_FILES_OF_A_PACKAGE

    def test_modules_are_short(self, folder: Path) -> None:
        lines = {
            file.name: len(file.read_text().splitlines())
            for file in folder.glob("*.py")
            if file.relative_to(SRC).as_posix() not in TABLES_OF_DATA
        }
        assert {name: n for name, n in lines.items() if n > MOST_LINES_OF_A_MODULE} == {}

    def test_functions_are_short_and_take_few_parameters(self, folder: Path) -> None:
        functions = [f for file in folder.glob("*.py") for f in _functions(file)]
        long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno is not None}
        own = [f for f in functions if not _is_compiled(f) and f.name not in SIGNATURES_OF_OTHERS]
        wide = {f.name: _parameters(f) for f in own}
        assert {name: n for name, n in long.items() if n > MOST_LINES_OF_A_FUNCTION} == {}
        assert {name: n for name, n in wide.items() if n > MOST_PARAMETERS} == {}


def test_any_is_rare() -> None:
    assert sum(len(re.findall(r"\bAny\b", file.read_text())) for file in MODULES) < MOST_ANY
