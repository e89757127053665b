"""Tables of the figures for the terminal."""

from __future__ import annotations

import pytest
from rich.console import Console

from tilewise.cli._figures import show_regret, show_slices


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("COLUMNS", "80")
    return Console(markup=False)


def test_the_best_of_the_top_k_fits_a_terminal(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    curve = [{"k": k, "mean_efficiency": 0.994, "p10_efficiency": 1.0, "hit_rate": 0.643} for k in range(1, 11)]
    show_regret(console, curve)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "best of the top k, measured"
    assert "│ 10 │ 99.4 % │ 100.0 % │         64.3 % │" in lines


def test_small_slices_alone_make_no_empty_table(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    show_slices(console, [{"slice": "size", "value": "small", "n_problems": 9}])
    assert capsys.readouterr().out == "groups of fewer than 10 problems are in metrics.json only\n"
