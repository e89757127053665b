"""Texts from outside are printed as they are: brackets, closing tags and :names: are no markup anywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rich.table import Table

from small_model import table, write_model
from store import fresh_store
from synthetic import CONV
from tilewise import cli
from tilewise.cli._console import plain_console
from tilewise.cli.main import EXIT_REFUSED, main
from tilewise.registry import ROLLED_BACK_TAG, connect
from tilewise.registry._versions import set_tag

TEXT = "[/bold] slow [link=x on [red]depthwise :warning:"
LOOSENED = (
    "gate.floors.grouped_conv.forward.mean=80",
    "gate.floors.grouped_conv.forward.p10=50",
    "gate.min_problems=5",
    "gate.override.reason='small tables of a test'",
)
SOURCES = sorted(Path(cli.__file__).parent.rglob("*.py"))


def test_a_table_and_its_title_hold_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Table(TEXT, title=TEXT, caption=TEXT)
    rows.add_row(TEXT)
    plain_console(200).print(rows, TEXT)
    assert capsys.readouterr().out.count(TEXT) == 5


@pytest.mark.parametrize("width", [80, 30])
def test_a_table_that_does_not_fit_becomes_a_list_with_whole_words(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "grouped_conv_forward_bf16_" + 60 * "x"
    rows = Table("", "kernel", "predicted TFLOPS", title="best first", caption="of 130 kernels")
    rows.add_row("1", name, "600.1")
    rows.add_row("2", "short", "")
    plain_console(width).print(rows)
    lines = ["best first", "1", f"kernel: {name}", "predicted TFLOPS: 600.1", "", "2", "kernel: short", ""]
    assert capsys.readouterr().out == "\n".join([*lines, "of 130 kernels\n"])


def test_a_table_of_80_columns_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Table("kernel", "predicted TFLOPS", "why")
    rows.add_row("a text of several words that is broken between its words only, " * 2, "600.1", "model")
    plain_console(80).print(rows)
    out = capsys.readouterr().out
    assert "predicted TFLOPS" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_verb_prints_through_the_plain_console(path: Path) -> None:
    """A console of rich's own reads markup unless told not to, and so does a column of a progress display."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        options = {k.arg: ast.unparse(k.value) for k in node.keywords}
        assert options.get("markup", "False") == "False", f"{path.name}:{node.lineno} switches markup on"
        if name in ("Console", "TextColumn"):
            assert options.get("markup") == "False", f"{path.name}:{node.lineno}: use plain_console, or markup=False"
        assert name not in ("from_markup", "rprint"), f"{path.name}:{node.lineno} reads markup"


@pytest.mark.long
def test_a_bracket_in_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It broke `registry list` and `registry show`, and turned a refusal into another error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilewise.registry.promotion._promote.log_plots", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "400")
    uri = f"tracking.uri={fresh_store(tmp_path / 'store')}"
    table().to_parquet("data.parquet")
    write_model(tmp_path / "models" / CONV)
    promote = ["promote", uri, "data=data.parquet", *LOOSENED]
    assert main(promote) == 0
    connect(uri.partition("=")[2])
    set_tag(CONV, 1, ROLLED_BACK_TAG, TEXT)
    capsys.readouterr()
    for action in ("list", "show"):
        assert main(["registry", action, uri]) == 0
        assert TEXT in capsys.readouterr().out

    write_model(tmp_path / "models" / CONV, sign=-1.0)
    monkeypatch.setattr("tilewise.registry.promotion._judge._selftest_error", lambda *_: TEXT)
    assert main(promote) == EXIT_REFUSED
    out, err = capsys.readouterr()
    assert TEXT in out
    assert "more reasons, see " in err
