"""The published data set: its tables judge as the measurements do, its split is the holdout, its card is true."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from benchmarks.leaderboard.cards import dataset_page

import tilewise
from small_model import table
from synthetic import CONV
from tilewise.cli.main import main
from tilewise.data import TargetTable, read_measurements
from tilewise.errors import DataError
from tilewise.kernels import backend
from tilewise.ops import OPS, Target
from tilewise.publish import card, write_tables

ROOT = Path(__file__).parents[2]
TARGETS = (Target.parse(CONV), Target.parse("gemm_universal_bf16_sm90"))


def _dimensions(frame: pd.DataFrame, op: str) -> list[str]:
    """Return the problem columns of a file, which lacks those that have their default in every row."""
    return [name for name in OPS[op].column_names() if name in frame]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    for target in TARGETS:
        table(target.name).to_parquet(folder / f"{target.op}.parquet")
    (folder / "NOTICE.txt").write_text("made by others")
    return folder


@pytest.fixture(scope="module")
def published(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "set"
    write_tables(measured, TARGETS, 0.5, folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_table_reads_as_measurements_and_tells_the_holdout(target: Target, published: Path, measured: Path) -> None:
    frame = read_measurements(published / f"{target.name}.parquet", target)
    pd.testing.assert_frame_equal(frame, read_measurements(measured, target))
    split = pd.read_parquet(published / f"{target.name}.parquet")["split"]
    held = TargetTable.of(frame, target).is_holdout(0.5)
    assert 0 < held.sum() < len(held)
    assert (split == "holdout").tolist() == held.tolist()
    assert set(split) == {"train", "holdout"}


def test_checksums_are_those_of_the_files(published: Path) -> None:
    lines = [line.split("  ") for line in (published / "SHA256SUMS").read_text().splitlines()]
    assert [name for _, name in lines] == [f"{target.name}.parquet" for target in TARGETS]
    assert all(hashlib.sha256((published / name).read_bytes()).hexdigest() == digest for digest, name in lines)
    assert (published / "NOTICE.txt").read_text() == "made by others"


def test_the_card_counts_the_rows_and_names_the_columns(published: Path) -> None:
    text = (published / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert [c["data_files"] for c in head["configs"]] == [f"{target.name}.parquet" for target in TARGETS]
    for target in TARGETS:
        frame = pd.read_parquet(published / f"{target.name}.parquet")
        valid = frame[frame["is_valid"]]
        problems = valid.drop_duplicates(_dimensions(valid, target.op))["split"].value_counts()
        kernels = valid["kernel_name"].nunique()
        cells = [len(frame), len(valid), kernels, problems["train"], problems["holdout"]]
        assert f"| `{target.name}` | {' | '.join(f'{n:,}' for n in cells)} |" in text
    common = set.intersection(*({*pd.read_parquet(f).columns} for f in published.glob("*.parquet")))
    described = set(re.findall(r"`(\w+)`", text))
    assert {"latency_ms", "tflops", "status", "split"} <= common - {*backend("triton").column_kinds()} <= described


def test_a_folder_with_files_is_left_alone(measured: Path, published: Path) -> None:
    with pytest.raises(
        DataError, match="exists already; published tables are never overwritten, choose another output"
    ):
        write_tables(measured, TARGETS[:1], 0.5, published)


@pytest.mark.long
def test_the_command_publishes_and_its_tables_score(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["data", "publish", "output=set", f"data={measured}", f"target={CONV}", "--json"]
    assert main([*words, "holdout.fraction=0.5"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tables"] == {CONV: hashlib.sha256(Path("set", f"{CONV}.parquet").read_bytes()).hexdigest()}
    rows = pd.read_parquet(f"set/{CONV}.parquet")
    key = _dimensions(rows, "grouped_conv")
    held = rows[rows["is_valid"] & (rows["split"] == "holdout")].sort_values("tflops", ascending=False)
    held.drop_duplicates(key)[[*key, "kernel_name"]].to_csv("best.csv", index=False)
    words = ["score", "predictions=best.csv", "data=set", f"target={CONV}", "holdout.fraction=0.5", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["min_efficiency"] == 1.0
    assert main(["data", "publish", f"data={measured}"]) == 2
    assert "output: missing; name the folder to write" in capsys.readouterr().err


def test_the_page_of_the_docs_has_every_committed_target() -> None:
    page = dataset_page()
    targets = yaml.safe_load((ROOT / "conf/stages/all.yaml").read_text())["targets"]
    assert sorted(re.findall(r"^\| `(\w+_(?:sm|gfx)\w+)` \|", page, re.MULTILINE)) == sorted(targets)
    assert "`Hi`" in page
    assert "`layout`" in page


def test_the_card_of_no_table_has_its_columns_and_the_split() -> None:
    assert "are below 0.25. The key" in card([], 0.25)
    assert "| `split` | str |  | train or holdout |" in card([], 0.25)


def test_the_citation_names_the_licence_and_no_version_that_could_go_stale() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == "MIT"
    assert citation["cff-version"] == "1.2.0"
    assert citation.get("version", tilewise.__version__) == tilewise.__version__
