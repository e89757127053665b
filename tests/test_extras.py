"""A library that is not installed is named together with the extra that has it."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

from alone import run_alone
from tilewise._extras import EXTRAS

ROOT = Path(__file__).parents[1]
DEFAULT = {"hydra", "numpy", "omegaconf", "rich", "yaml"}

_WITHOUT = """
import sys
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name in {hidden} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


def _imported() -> dict[str, str]:
    """Return the libraries that the sources import, each with a file that does."""
    found = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found.update({name.partition(".")[0]: file.name for name in names})
    return found


@pytest.mark.long
def test_every_import_belongs_to_the_default_install_or_to_an_extra() -> None:
    known = DEFAULT | {module for modules in EXTRAS.values() for module in modules} | {"tilewise", ""}
    assert {n: f for n, f in _imported().items() if n not in known and n not in sys.stdlib_module_names} == {}


def test_the_table_names_the_extras_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {*EXTRAS, "dev", "docs"}


@pytest.mark.long
def test_every_extra_has_a_library_that_the_sources_import() -> None:
    imported = set(_imported())
    assert [extra for extra, modules in EXTRAS.items() if not imported & set(modules)] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("hidden", "statement", "message"),
    [
        ("lightgbm", "from tilewise.train import train", "'train': pip install 'tilewise[train]'"),
        ("mlflow", "from tilewise.registry import connect; connect()", "'registry': pip install 'tilewise[registry]'"),
        ("pandas", "from tilewise.data import table_hash", "'train' or 'gpu': pip install 'tilewise[train]'"),
        ("torch", "import tilewise.torch", "'gpu': pip install 'tilewise[gpu]'"),
        ("psycopg", "from tilewise.servers import run_stack", "'servers': pip install 'tilewise[servers]'"),
    ],
)
def test_an_import_names_the_extra(hidden: str, statement: str, message: str) -> None:
    run_alone(
        _WITHOUT.format(hidden={hidden})
        + f"""
from tilewise.errors import MissingExtraError
try:
    {statement}
except ModuleNotFoundError as error:
    assert isinstance(error, MissingExtraError), repr(error)
    assert str(error) == {f"{hidden} is not installed; this needs the extra {message}"!r}, error
    assert error.name == {hidden!r}
else:
    raise AssertionError("it was found")
"""
    )


def test_imports_of_others_fail_as_they_always_do() -> None:
    run_alone(
        _WITHOUT.format(hidden={"torch"})
        + """
import tilewise
try:
    import torch
except ModuleNotFoundError as error:
    assert str(error) == "No module named 'torch'", error
"""
    )
