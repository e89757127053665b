"""The project's own files, parsed once for all checks of the house."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "tilewise"
PYTHON = sorted(path for top in (SRC, ROOT / "benchmarks", ROOT / "tests") for path in top.rglob("*.py"))
C = sorted(path for pattern in ("*.c", "*.h") for path in SRC.rglob(pattern))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
MODULES = [path for path in PYTHON if path.is_relative_to(SRC)]


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(file.read_text())


def name_of(path: Path) -> str:
    """Return the path as seen from the top of the repository."""
    return path.relative_to(ROOT).as_posix()


def folders(files: list[Path]) -> list[Path]:
    """Return the folders of `files`."""
    return sorted({file.parent for file in files})
