"""Hash of a kernel's code and of all functions and constants that it uses, so that an edited kernel is tuned again.

Comments, docstrings and formatting do not change it, nor does the place of the code in its file. Functions of other
libraries are left out: their versions are part of the machine's description.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType

from tilewise.dispatch.measuring import code_text

_CONSTANTS = (bool, int, float, str, bytes, type(None), tuple)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def source_hash(function: Callable[..., object]) -> str:
    """Return the SHA-256 of a Python function's code and of what it uses, as hexadecimal digits.

    A function without source, such as a built-in one, is hashed by its name.
    """
    digest = hashlib.sha256()
    for text in _texts(function, set()):
        digest.update(f"{len(text)}\n{text}".encode())
    return digest.hexdigest()


def python_function(function: object) -> Callable[..., object] | None:
    """Return the Python function within decorators that keep it as ``fn``, such as Triton's; None without one."""
    while not isinstance(function, FunctionType):
        inner = getattr(function, "fn", None) or getattr(function, "__wrapped__", None)
        if inner is None or inner is function:
            return None
        function = inner
    return function


def _texts(function: Callable[..., object], seen: set[int]) -> Iterator[str]:
    plain = python_function(function)
    if plain is None:
        yield f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
        return
    assert isinstance(plain, FunctionType)
    if id(plain) in seen:
        return
    seen.add(id(plain))
    yield _source_of(plain)
    for name, value in sorted(_used(plain), key=lambda pair: pair[0]):
        constant = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(constant, _CONSTANTS):
            yield f"{name}={constant!r}"
        elif (callee := python_function(value)) is not None and _is_users(callee, plain):
            yield name
            yield from _texts(callee, seen)


def _source_of(function: FunctionType) -> str:
    """Return the code without decorators, which hold the configurations: these are keys of their own."""
    try:
        (statement,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if isinstance(statement, ast.FunctionDef):
            statement.decorator_list = []
            return code_text(ast.unparse(statement))
    except (OSError, SyntaxError, ValueError):  # defined at a prompt, or a lambda within a call
        pass
    code = function.__code__
    return f"{code.co_code.hex()} {code.co_consts!r} {code.co_names!r}"


def _used(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the globals and closed-over values that a function names, and members of its package's modules."""
    names = set(_names(function.__code__))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names & function.__globals__.keys() - vars(builtins).keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType) and _top(value.__name__) == _top(function.__module__):
            yield from ((f"{name}.{member}", getattr(value, member)) for member in names if hasattr(value, member))
        else:
            yield name, value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_users(callee: Callable[..., object], caller: FunctionType) -> bool:
    """Return whether a function is part of the caller's package, or of no installed library."""
    same = _top(callee.__module__ or "") == _top(caller.__module__ or "")
    return same or not inspect.getfile(callee).startswith(_LIBRARIES)


def _top(module: str) -> str:
    return module.partition(".")[0]
