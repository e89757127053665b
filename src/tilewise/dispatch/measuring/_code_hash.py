"""A hash of the code in Python files that comments, docstrings and formatting do not change.

It is taken over the syntax trees instead of the bytes. Fields without a value are skipped, so that Python versions
whose trees differ only by new optional fields agree.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path


def code_hash(root: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of the code in `files`, which lie below `root`, as hexadecimal digits.

    Raises:
        SyntaxError: a file is not valid Python.
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for file in sorted(files):
        code = code_text(file.read_bytes())
        digest.update(f"{file.relative_to(root).as_posix()}\n{len(code)}\n{code}".encode())
    return digest.hexdigest()


def code_text(source: str | bytes) -> str:
    """Return the syntax tree of a module as text, without positions, docstrings and other bare strings."""
    return _text(ast.parse(source))


def _text(node: object) -> str:
    if isinstance(node, ast.AST):
        values = ((name, getattr(node, name, None)) for name in node._fields)
        fields = ",".join(f"{name}={_text(value)}" for name, value in values if value is not None and value != [])
        return f"{type(node).__name__}({fields})"
    if isinstance(node, list):
        return f"[{','.join(_text(item) for item in node if not _is_bare_string(item))}]"
    return repr(node)


def _is_bare_string(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
