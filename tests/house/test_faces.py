"""Every package is entered by its face: a contract, a complete ``__all__``, and no import past it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from house.sources import PYTHON, SRC, folders, name_of, tree_of

NEEDS_AN_EXTRA = {"tilewise.servers"}
FACES = sorted(SRC.rglob("__init__.py"))
READERS = [path for path in PYTHON if "tests" not in path.relative_to(SRC.parents[1]).parts]


def _package(face: Path) -> str:
    return ".".join(face.parent.relative_to(SRC.parent).parts)


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tilewise"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tilewise"))


@pytest.mark.parametrize("face", FACES, ids=_package)
def test_face_states_its_contract_and_hands_on_its_names(face: Path) -> None:
    package = importlib.import_module(_package(face))
    contract = (package.__doc__ or "").strip()
    assert contract
    assert "TODO" not in contract
    names = list(getattr(package, "__all__", ()))
    assert len(names) == len(set(names))
    with suppress(ImportError) if _package(face) in NEEDS_AN_EXTRA else nullcontext():
        assert [name for name in names if not hasattr(package, name)] == []


@pytest.mark.long
@pytest.mark.parametrize("folder", folders(READERS), ids=name_of)
def test_no_import_reaches_past_a_face(folder: Path) -> None:
    """A private module is imported by its own package and by the packages inside that, by no other."""
    here = ".".join(folder.relative_to(SRC.parent).parts) if folder.is_relative_to(SRC) else ""
    past = []
    for module in (name for file in READERS if file.parent == folder for name in _imports(file)):
        parts = module.split(".")
        private = next((i for i, part in enumerate(parts) if part.startswith("_") and not part.endswith("__")), None)
        owner = ".".join(parts[:private])
        if private is not None and owner != "tilewise" and not f"{here}.".startswith(f"{owner}."):
            past.append(module)
    assert past == []
