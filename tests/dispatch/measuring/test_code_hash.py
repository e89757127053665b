"""The hash of the kernels' code changes with the code only, so a comment does not cost a user any measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewise
from tilewise.dispatch.measuring import kernels_hash
from tilewise.dispatch.measuring._code_hash import code_hash, code_text

SOURCE = '''"""A module."""

import triton

STAGES = 3


@triton.jit
def kernel(x, y, BLOCK: int = 64):
    """Add."""
    # one block per program
    return x + y * BLOCK
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('"""A module."""\n\n', ""),
        ('    """Add."""\n', ""),
        ("    # one block per program\n", ""),
        ("# one block per program", "# a block per program"),
        ("x + y * BLOCK", "(x + y\n            * BLOCK)"),
        ("\n\n\n@triton", "\n\n@triton"),
    ],
)
def test_prose_and_formatting_are_free(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_text(SOURCE.replace(old, new)) == code_text(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("STAGES = 3", "STAGES = 4"),
        ("STAGES = 3", "STAGES = 3.0"),
        ("STAGES = 3", "STAGES = '3'"),
        ("x + y", "x - y"),
        ("BLOCK: int = 64", "BLOCK: int = 128"),
        ("@triton.jit\n", ""),
        ("def kernel", "def renamed"),
        ("return x + y * BLOCK", "return (x + y) * BLOCK"),
    ],
)
def test_code_is_not(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_text(SOURCE.replace(old, new)) != code_text(SOURCE)


def test_a_string_that_is_used_is_code() -> None:
    assert code_text("x = 'a'") != code_text("x = 'b'")


def test_files_count_with_their_names(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(SOURCE)
    two.write_text("x = 1\n")
    both = code_hash(tmp_path, [one, two])
    assert code_hash(tmp_path, [two, one]) == both
    assert code_hash(tmp_path, [one]) != both
    two.rename(tmp_path / "three.py")
    assert code_hash(tmp_path, [one, tmp_path / "three.py"]) != both


def test_the_kernels_hash_covers_the_triton_programs() -> None:
    root = Path(tilewise.__file__).parent
    programs = sorted((root / "kernels" / "triton").rglob("*.py"))
    assert {"_kernel.py", "_matrix_product.py"} <= {p.name for p in programs}
    assert kernels_hash() == code_hash(root, programs)
