"""A newcomer who follows the pages reaches what they promise, in the time that they promise on two cores.

The tutorial is run as it stands, step by step, but for its first block: that clones, installs and pulls the data, which
the test takes from the committed store. `make repro`, the README's first command, trains for minutes and prints the
time of its steps; the README's Python is run with a small model.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from committed import ROOT, data_file
from small_model import table, write_model
from store import fresh_store
from tilewise.gate import Thresholds
from tilewise.registry import registry_session
from tilewise.registry.promotion import Override, PromotionRules, promote

TUTORIAL = ROOT / "docs" / "tutorial.md"
TABLE = "grouped_conv_forward_bf16_gfx950.ck-tile.parquet"
REFUSED = "model_dir=models/worse"  # the one command that is to fail
MINUTES = 20
_BLOCK = re.compile(r"```(sh|text|python)\n(.*?)```", re.DOTALL)


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES)
def test_the_tutorial_leads_from_a_table_to_a_selection(tmp_path: Path) -> None:
    blocks = [(m[1], m[2]) for m in _BLOCK.finditer(TUTORIAL.read_text())]
    assert "git clone" in blocks[0][1]
    assert TABLE in blocks[0][1]
    (tmp_path / "data").mkdir()
    shutil.copy(data_file(TABLE), tmp_path / "data" / TABLE)
    begun, printed = time.monotonic(), ""
    for kind, text in blocks[1:]:
        if kind == "text":
            assert [line for line in text.splitlines() if _words(line) not in _words(printed)] == []
            continue
        commands = [["-c", text]] if kind == "python" else _commands(text)
        for command in commands:
            start = time.monotonic()
            answer = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True
            )
            print(f"{time.monotonic() - start:6.1f} s  {' '.join(command).strip().splitlines()[0]}")
            expected = 3 if command[2:3] == ["promote"] and REFUSED in command else 0
            assert answer.returncode == expected, answer.stdout + answer.stderr
            printed += answer.stdout + answer.stderr
    assert time.monotonic() - begun < 60 * MINUTES


@pytest.mark.long
def test_the_readmes_lines_select_by_the_model_in_production(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small model in production stands for that of `make repro`."""
    uri = fresh_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    rules = PromotionRules(Thresholds(min_problems=5), 0.18, override=Override("a small holdout"))
    with registry_session(uri):
        assert promote(write_model(tmp_path / "model"), table(), rules, tmp_path / "reports").in_production
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(lines.strip().splitlines()) == 6
    exec(lines, {})
    assert capsys.readouterr().out.rstrip().endswith(" model")


def _words(text: str) -> str:
    """Return a text without its line breaks, and with (...) in place of a version's digest."""
    return re.sub(r"\([0-9a-f]{12}\)", "(...)", " ".join(text.split()))


def _commands(block: str) -> list[list[str]]:
    """Return the words after `python` of each command of a block."""
    lines = [line.split("   #")[0].strip() for line in block.splitlines()]
    return [["-m", *line.replace("'", "").split()] for line in lines if line]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TILEWISE_", "MLFLOW_"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TILEWISE_CACHE": str(folder / "cache"), "COLUMNS": "120"}
