"""The notebook of the documentation runs in a fresh folder, in a process of its own, and shows what is committed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from committed import ROOT, data_file

NOTEBOOK = ROOT / "docs" / "notebooks" / "train.ipynb"
TABLE = "grouped_conv_forward_bf16_gfx950/ck-tile.parquet"


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    table = tmp_path / "data" / TABLE
    table.parent.mkdir(parents=True)
    shutil.copy(data_file(TABLE), table)
    notebook = _read()
    committed = list(_outputs(notebook))
    NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert list(_outputs(notebook)) == committed


def _read() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]


def _outputs(notebook: Any) -> Iterator[tuple[str, ...]]:
    """Yield the kinds of each cell's outputs, and those texts that no machine or library changes."""
    for cell in notebook.cells:
        for output in (o for o in cell.get("outputs", ()) if o.output_type == "execute_result"):  # no warnings
            text = output.data.get("text/plain", "")
            yield (*sorted(output.data), re.sub(r"0x\w+|\d+\.\d+", "#", text) if len(text) < 200 else "")


def test_the_committed_outputs_are_complete_and_without_errors() -> None:
    code = [cell for cell in _read().cells if cell.cell_type == "code"]
    kinds = [output.output_type for cell in code for output in cell.outputs]
    assert set(kinds) == {"execute_result"}
    assert len(kinds) >= 8
    assert any("image/png" in output.data for cell in code for output in cell.outputs)
    assert NOTEBOOK.stat().st_size < 250_000
