"""One table of exit statuses holds for every verb: docs/configuration.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from small_model import table, write_model
from synthetic import CONV
from tilewise.cli import main as module
from tilewise.cli._verbs import VERBS
from tilewise.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with measurements and a model, and with an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    table().to_parquet(tmp_path / "data" / "table.parquet")
    write_model(tmp_path / "models" / CONV)


def test_the_page_has_every_status() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    listed = [int(status) for status in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert listed == sorted(value for name, value in vars(module).items() if name.startswith("EXIT_"))


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "collect input=none",
        "collect collect.simulate=none output=o.parquet",
        "plan data=none output=o.json",
        "plan plan.requests=none output=o.json",
        "ingest input=none output=o.parquet",
        "data prepare input=none",
        "data merge input=[none] output=o.parquet",
        "data describe data=none",
        "instances list input=none",
        "instances compare a=none b=none",
        "train data=none",
        "train warm_start=none",
        "evaluate data=none",
        "evaluate model_dir=none",
        "compare a=none b=none",
        "promote model_dir=none",
        "promote gate.shadow=none",
        "shadow report input=none",
        "shadow rollback input=none",
        "explain input=none",
        "cache list input=none",
        "cache merge input=none",
        "cache problems input=none output=o.csv",
        "validate mode=trace plan.requests=none",
        "validate mode=oracle input=none",
        "search input=none",
        "search model_dir=none",
        "train params=none",
    ],
)
def test_a_missing_file_is_the_callers_mistake(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "none" in err
    assert "fault of tilewise" not in err


@pytest.mark.long
@pytest.mark.parametrize("command", ["cache list", "cache prune", "cache list --json"])
def test_an_empty_cache_is_no_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().err == ""


class TestOutput:
    """``--json`` and ``--quiet``, which every verb takes."""

    @pytest.mark.long
    @pytest.mark.parametrize("verb", VERBS)
    def test_an_error_is_json_too(self, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([verb, "--json", "n_split=1"]) == 2
        out, err = capsys.readouterr()
        assert json.loads(out)["status"] == 2
        assert json.loads(out)["error"] in err

    @pytest.mark.long
    @pytest.mark.parametrize("verb", VERBS)
    def test_an_error_is_not_quiet(self, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([verb, "-q", "n_split=1"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tilewise: error: ")

    @pytest.mark.long
    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_writes_a_result(self, verb: str) -> None:
        source = (Path(module.__file__).parent / VERBS[verb].package / f"{verb}.py").read_text()
        assert "write_result(" in source
        assert not re.search(r"(?<![.\w])print\((?!.*file=sys\.stderr)|sys\.stdout\.write\((?!captured)", source)

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("command", "keys"),
        [
            ("cache list", set()),
            ("data prepare output=p.parquet", {"output", "rows", "valid", "quarantined"}),
            ("data describe", {"name", "title", "header", "rows", "words", "note"}),
            ("instances count", {"instances"}),
            ("collect collect.dry_run=true collect.part=[0,2] output=o.parquet", {"problems", "pairs", "measure_s"}),
            (f"compare a=models/{CONV} b=models/{CONV}", {"a", "b", "deltas"}),
            ("select 'problem={N:8,C:64,K:64,G:1,Hi:7,Wi:7,Y:1,X:1}'", {"kernel_name", "why", "ranking"}),
            ("explain 'problem={N:8,C:64,K:64,G:1,Hi:7,Wi:7,Y:1,X:1}'", {"kernel_name", "why", "ranking"}),
        ],
    )
    def test_a_result(self, command: str, keys: set[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*shlex.split(command), "--json"]) == 0, capsys.readouterr().err
        document = json.loads(capsys.readouterr().out)
        assert keys <= (document[0] if keys and isinstance(document, list) else dict.fromkeys(document)).keys()
        for file in Path().glob("*.parquet"):
            file.unlink()
        assert main([*shlex.split(command), "--quiet"]) == 0
        assert capsys.readouterr().out == ""

    def test_json_and_quiet_exclude_each_other(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["registry", "--json", "--quiet"]) == 2
        assert "--json and --quiet exclude each other" in capsys.readouterr().err
