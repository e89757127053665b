"""tilewise collect without a GPU: dry runs, refused settings, where a run is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synthetic import CONV, measurements
from tilewise.checks import require_format
from tilewise.cli.main import main
from tilewise.collect import load_plan

TARGET = f"target={CONV}"


@pytest.mark.long
def test_a_dry_run_prints_the_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    settings = (TARGET, "collect.dry_run=true", "collect.part=[0,20]", "collect.devices=[0,1]")
    assert main(["collect", *settings, f"output={tmp_path}/out.parquet"]) == 0
    said = capsys.readouterr().out
    assert "20 problems, 0 of them done; 20 x 144 kernels left" in said
    assert "dropped: depth needs one input channel a group" in said
    assert "2 GPUs" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    ("setting", "status", "message"),
    [
        ("collect.devices=[x]", 2, "collect.devices must be GPU indices, or [all]"),
        ("collect.budget_s=-1", 2, "budget_s must not be negative, got -1"),
        (
            "output=out.csv",
            2,
            "is written as parquet, so its name must not promise another format; use",
        ),
        ("collect.budget_s=0", 4, "3 of 3 problems are left: the budget is spent"),
    ],
)
def test_an_error_has_a_status_and_a_line(
    setting: str, status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", TARGET, "collect.part=[0,3]", f"output={tmp_path}/out.parquet", setting]) == status
    assert message in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "format_"),
    [
        (["ingest", "input=in.csv", "output=x.csv"], "parquet"),
        (["data", "prepare", "input=in.parquet", "output=x.CSV"], "parquet"),
        (["data", "merge", "input=[in.parquet]", "output=x.json"], "parquet"),
        (["plan", "output=x.csv"], "json"),
    ],
)
def test_a_name_of_another_format_is_refused(
    words: list[str], format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table was written as parquet, or the plan as JSON, under a name that ends in .csv."""
    monkeypatch.chdir(tmp_path)
    given = [tmp_path / name for name in ("data", "in.csv", "in.parquet")]
    for path in given:
        path.touch()
    assert main([*words, TARGET]) == 2
    assert f"is written as {format_}" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == given


@pytest.mark.long
def test_a_run_is_a_file_in_its_targets_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is made with the first run."""
    monkeypatch.chdir(tmp_path)
    measurements(CONV, 3, 4).to_parquet("recorded.parquet")
    assert main(["collect", TARGET, "collect.simulate=recorded.parquet", "collect.run_id=first"]) == 0
    assert list(Path("data").rglob("*")) == [Path("data", CONV), Path("data", CONV, "simulated-first.parquet")]


@pytest.mark.parametrize("name", ["out.parquet", "out.PARQUET", "out", "runs.2026-01", "out.parquet.part"])
def test_other_names_are_accepted(name: str) -> None:
    require_format(name, ".parquet")


GEMM = "target=gemm_universal_fp16_sm90"


def test_layouts_warm_up_and_repeats_are_options(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    words = ["collect", GEMM, f"collect.plan={plan}", "collect.repeats=20", "collect.timing.warmup=5"]
    (tmp_path / "problems.csv").write_text("M,N,K,layout,origin\n64,64,64,rcr,a\n64,64,64,ccr,a\n8,64,64,rcr,b\n")
    assert main([*words, f"collect.problems={tmp_path}/problems.csv", "collect.layouts=[rrr,rcr]"]) == 0
    loaded = load_plan(plan)
    found = [(i.problem.M, i.problem.layout) for i in loaded.items]  # type: ignore[attr-defined]
    assert found == [(64, "rrr"), (8, "rrr"), (64, "rcr"), (8, "rcr")]
    assert (loaded.timing.rounds, loaded.timing.min_rounds, loaded.timing.warmup) == (20, 20, 5)
    assert loaded.dumps() == plan.read_text()


def test_a_plan_without_a_warm_up_stays_as_it_was(tmp_path: Path) -> None:
    assert main(["collect", GEMM, f"collect.plan={tmp_path}/plan.json", "collect.part=[0,2]"]) == 0
    assert "warmup" not in json.loads((tmp_path / "plan.json").read_text())["timing"]


@pytest.mark.long
@pytest.mark.parametrize("layouts", ["[rcc]", "[]"])
def test_layouts_are_those_of_the_op(layouts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", GEMM, f"collect.layouts={layouts}", "collect.dry_run=true"]) == 2
    assert "collect.layouts must be of rcr, rrr, crr, ccr" in capsys.readouterr().err
