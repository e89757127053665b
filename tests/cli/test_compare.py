"""tilewise compare from the command line: folders and registered models, the table, the file, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from small_model import table, write_model
from synthetic import CONV
from tilewise.cli.main import main
from tilewise.registry import registry_session
from tilewise.registry.promotion import publish


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two models, one of them also registered, and measurements."""
    folder = tmp_path_factory.mktemp("compare")
    write_model(folder / "good")
    write_model(folder / "bad", sign=-1.0)
    table().to_parquet(folder / "table.parquet")
    with registry_session(f"sqlite:///{folder}/mlflow.db"):
        publish(folder / "bad")
    return folder


@pytest.fixture
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")


ARGS = ("data=table.parquet", "holdout.fraction=0", "compare.n_resamples=100", "output=out.json")


@pytest.mark.usefixtures("_inside")
class TestCompare:
    @pytest.mark.long
    def test_figures_stand_beside_what_they_depend_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compare", "a=bad", "b=good", *ARGS]) == 0
        printed = capsys.readouterr().out
        for words in (
            f"{CONV}, 40 problems",
            "same kernel:",
            "improved",
            "largest improvements:",
            "b - a, points",
            "95% interval",
            "better",
            "pools of 24 kernels",
            "split: all problems of the table",
            "noise ceiling: unknown",
            "paired bootstrap over problems, 100 resamples, seed 0",
        ):
            assert words in printed

    @pytest.mark.long
    def test_the_file_has_the_printed_figures(self) -> None:
        assert main(["compare", "a=bad", "b=good", *ARGS]) == 0
        first = Path("out.json").read_bytes()
        found = json.loads(first, parse_constant=pytest.fail)
        assert (found["a"]["model"], found["b"]["model"]) == ("bad", "good")
        assert found["n_improved"] > found["n_degraded"]
        assert found["deltas"]["mean"]["low"] > 0
        assert main(["compare", "a=bad", "b=good", *ARGS]) == 0
        assert Path("out.json").read_bytes() == first

    @pytest.mark.long
    @pytest.mark.parametrize("name", ["@candidate", "/1"])
    def test_a_registered_model(self, name: str) -> None:
        assert main(["compare", f"a=models:/{CONV}{name}", "b=bad", *ARGS]) == 0
        found = json.loads(Path("out.json").read_text())
        assert found["a"]["content_hash"] == found["b"]["content_hash"]
        assert found["same_kernel"] == 1

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ((), "a and b: both models are needed"),
            (("a=good", "b=bad", "output=x.csv"), "is written as json, so its name must not promise another format"),
            (("a=good", "b=nowhere"), "nowhere: no such file or folder"),
            (
                ("a=good", "b=models:/t"),
                "'models:/t' is not the name of a registered model; expected models:/TARGET@ALIAS",
            ),
            (("a=good", f"b=models:/{CONV}@production"), "the registry at .* has no such version"),
            (("a=good", f"b=models:/{CONV}/7"), "the registry at .* has no such version"),
            (("a=good", f"b=models:/{CONV}/1", "tracking.uri=sqlite:///none.db"), "no model is registered at"),
            (("a=good", "b=good", "compare.level=2"), "level between 0 and 1, got 100 and 2.0"),
        ],
    )
    def test_mistakes_are_one_line(
        self, args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compare", *ARGS, *args]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error)
        assert error.count("\n") == 1
