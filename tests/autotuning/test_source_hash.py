"""The hash follows the code: of the kernel, of the functions and constants that it uses, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tilewise.autotuning.records._source_hash import source_hash

SOURCE = """
import math
import tilewise

LIMIT = 8

def helper(n):
    return min(n, LIMIT)

def other(n):
    return n

@tilewise.autotune(configs=[{"w": 1}, {"w": 2}], key=["n"])
def kernel(n, *, w):
    return helper(n) * math.pi
"""


def _hash(folder: Path, source: str) -> str:
    folder.mkdir(exist_ok=True)
    name = f"hashed_{folder.name}"
    file = folder / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.kernel.code)


@pytest.mark.parametrize(
    "change",
    [("* math.pi", "* math.pi + 1"), ("min(n", "max(n"), ("LIMIT = 8", "LIMIT = 9"), ("n, *, w", "n, *, w=1")],
    ids=["kernel", "callee", "constant of a callee", "signature"],
)
def test_changed_code_changes_the_hash(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in SOURCE
    assert _hash(tmp_path / "a", SOURCE) != _hash(tmp_path / "b", SOURCE.replace(*change))


@pytest.mark.parametrize(
    "change",
    [
        ("import math", "# a comment\n\n\nimport math"),
        ("    return helper(n)", '    """Compute."""\n    return helper( n )'),
        ('{"w": 2}', '{"w": 3}'),
        ("def other(n):\n    return n", "def other(n):\n    return -n"),
    ],
    ids=["place", "docstring and formatting", "configurations", "unused function"],
)
def test_anything_else_does_not(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in SOURCE
    assert _hash(tmp_path / "a", SOURCE) == _hash(tmp_path / "b", SOURCE.replace(*change))


def test_a_function_without_source_is_hashed_by_its_name() -> None:
    assert source_hash(len) != source_hash(max)
    assert source_hash(len) == source_hash(len)
