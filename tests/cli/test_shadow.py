"""tilewise shadow and gate.shadow from the command line: output, files and exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gate.shadowed import observed
from small_model import table, write_model
from store import fresh_store
from synthetic import CONV
from tilewise.cli.main import EXIT_REFUSED, main
from tilewise.gate import Observation
from tilewise.registry import list_aliases, registry_session
from tilewise.registry._history import commit_change, settle_history
from tilewise.registry.promotion import publish


def write(path: Path, observations: list[Observation]) -> str:
    path.write_text("".join(f"{o.dumps()}\n" for o in observations))
    return f"input={path}"


def test_a_report_to_read_and_one_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "j", observed([2.0, 0.5, None]))
    assert main(["shadow", source, f"out={tmp_path}/out"]) == 0
    out, err = capsys.readouterr()
    assert "| candidate right | 1 of 2 |" in out
    assert err == ""
    assert (tmp_path / "out" / "shadow.md").read_text() in out
    assert json.loads((tmp_path / "out" / "shadow.json").read_text())["pairs"][0]["problems"] == 3


def test_the_journal_of_the_cache_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path))
    write(tmp_path / "shadow.jsonl", observed([2.0]))
    assert main(["shadow", "report"]) == 0
    assert "| problems | 1 |" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(("overrides", "message"), [
    (["input=nowhere.jsonl"], "nowhere.jsonl: no such file or folder"),
    (["input={j}", "target=gemm_universal_bf16_sm90"], f"nothing was observed of gemm_universal_bf16_sm90; .* {CONV}"),
])  # fmt: skip
def test_mistakes_are_one_line(
    tmp_path: Path, overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "j", observed([2.0]))
    assert main(["shadow", *(o.format(j=tmp_path / "j") for o in overrides)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(message, err)


@pytest.mark.long
def test_the_gate_refuses_and_production_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilewise.registry.promotion._promote.log_plots", lambda *_: None)
    uri = fresh_store(tmp_path / "store")
    table().to_parquet("data.parquet")
    with registry_session(uri):
        first = publish(write_model(tmp_path / "first"))
        commit_change(settle_history(CONV), first.number, "promoted", "", previous=None)
    second = write_model(tmp_path / "models" / CONV, note="second")
    with registry_session(uri):
        candidate = publish(second).content_hash
    source = write(tmp_path / "j", observed([0.9] * 20, candidate=candidate, production=first.content_hash))
    promote = [
        "promote",
        f"tracking.uri={uri}",
        "data=data.parquet",
        "gate.min_problems=5",
        "gate.override.reason=test",
    ]
    assert main([*promote, f"gate.shadow={tmp_path}/j"]) == EXIT_REFUSED
    out, err = capsys.readouterr()
    assert "NO  observed by a shadow: 20 problems observed" in out
    assert "it is not shown to be at least 0.995" in err
    assert main(promote) == 0
    rollback = ["shadow", "rollback", source, f"tracking.uri={uri}"]
    for said in (f"{CONV} version 1 ({first.content_hash[:12]}): rolled back", "was rolled back itself"):
        capsys.readouterr()
        assert main(rollback) == 0
        assert said in capsys.readouterr().out
    with registry_session(uri):
        assert list_aliases(CONV)["production"] == 1
