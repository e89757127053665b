"""The verbs select, explain and cache, without a registry or a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from small_model import table, write_model
from synthetic import CONV
from tilewise.cli.main import main
from tilewise.cli.runtime import explain
from tilewise.cli.runtime.explanation_page import page
from tilewise.cli.runtime.page_facts import page_facts
from tilewise.collect.problems._problem_files import load_problem_file
from tilewise.dispatch import Dispatcher, Switches
from tilewise.ops import GroupedConvProblem

SIZES = "problem={N:8,C:64,K:64,G:1,Hi:28,Wi:28,Y:3,X:3,pad_h:1,pad_w:1}"
PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
OTHER = GroupedConvProblem(N=1, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", trees=10)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("mixed") / "model", trees=10, vendor=True)


def test_a_model_folder_selects_without_a_registry(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nothing listens there
    assert main(["select", f"input={folder}", SIZES]) == 0
    told = json.loads(capsys.readouterr().out)
    with Dispatcher.from_folder(folder, switches=Switches()) as dispatcher:
        assert told["kernel_name"] == dispatcher.select(PLAIN).kernel_name
        assert told["content_hash"] == dispatcher.content_hash
    assert told["model_version"] is None


@pytest.mark.long
def test_a_variable_asks_for_the_vendor_s_calls_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = write_model(tmp_path / "model", trees=10, vendor=True)
    for vendor in ("only", "off"):
        monkeypatch.setenv("TILEWISE_VENDOR", vendor)
        assert main(["select", f"input={mixed}", SIZES]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["kernel_name"].endswith("_vendor_cudnn") is (vendor == "only")


def test_a_journal_is_replayed_where_there_is_no_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Dispatcher.from_folder(folder, switches=Switches(journal="journal")) as dispatcher:
        selections = [dispatcher.select(p) for p in (PLAIN, OTHER)]
    for selection, chosen in ((selections[1], []), (selections[0], [SIZES])):
        assert main(["explain", "input=journal", f"model_dir={folder}", *chosen]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["kernel_name"], told["agrees"]) == (selection.kernel_name, True)
        assert told["recorded"]["problem"] == told["problem"]
        assert told["features"]
    console = Console(width=120, record=True)
    explain.show(told, console)
    text = console.export_text()
    assert told["kernel_name"] in text
    assert told["features"][0]["feature"] in text
    assert "the model ranks alike now" in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["select", "input=none", SIZES], "input=none: no such file or folder"),
        (["explain"], "problem: missing"),
        (["explain", "input=none"], "none: no such file or folder"),
        (["cache"], "cache needs an action, one of list, merge, prune, problems, export; got None"),
        (["cache", "merge"], "input: missing; name the other machine's cache"),
        (["cache", "list", "input=none"], "has no measurements"),
        (["cache", "problems", "input=none", "output=x.csv"], "none: no such file or folder"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.long
def test_measured_here_taken_over_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recorded table stands in for the GPU; its measurements are merged into another cache and listed."""
    rows = table()
    rows.to_parquet("recorded.parquet")
    measured = rows[rows["is_valid"]].groupby(list(GroupedConvProblem.column_names()))["latency_ms"]
    sizes, fastest = measured.min().index[0], measured.min().iloc[0]
    problem = GroupedConvProblem(*sizes)
    monkeypatch.setenv("TILEWISE_SIMULATE", "recorded.parquet")
    monkeypatch.setenv("TILEWISE_MEASURE", "missing")
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "there"))
    folder = write_model(tmp_path / "model", trees=2)
    with Dispatcher.from_folder(folder, switches=Switches.read(model="off")) as dispatcher:
        first = dispatcher.select(problem)
    assert first.why == "measured"
    assert first.measured_ms == pytest.approx(fastest)
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "here"))
    assert main(["cache", "merge", f"input={tmp_path / 'there'}"]) == 0
    assert "1 added, 0 replaced, 0 unchanged; 0 damaged" in capsys.readouterr().out
    with Dispatcher.from_folder(folder, switches=Switches.read(model="off", measure="off")) as dispatcher:
        assert dispatcher.select(problem).why == "cache"
    assert main(["cache", "list"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["target"], row["problems"], row["device"]) == (CONV, 1, "recorded in recorded.parquet")
    assert main(["cache", "prune"]) == 0
    assert capsys.readouterr().out.endswith("0 entries removed\n")


def test_requests_become_a_problem_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Dispatcher.from_folder(folder, switches=Switches(record="asked.jsonl")) as dispatcher:
        for problem in (OTHER, PLAIN, PLAIN):
            dispatcher.select(problem)
    assert main(["cache", "problems", "input=asked.jsonl", "output=asked.csv"]) == 0
    assert "2 problems of" in capsys.readouterr().out
    items = load_problem_file(Path("asked.csv"), "grouped_conv")
    assert [(i.problem, i.origin) for i in items] == [(PLAIN, "asked 2 times"), (OTHER, "asked 1 times")]
    assert main(["cache", "problems", "input=asked.jsonl", "output=x.csv", "variant=bwd_data"]) == 2
    assert f"the file has requests for {CONV}" in capsys.readouterr().err


class TestPage:
    def test_a_journal_s_line_becomes_one_self_contained_page(self, mixed: Path, tmp_path: Path) -> None:
        with Dispatcher.from_folder(mixed, switches=Switches(journal="journal")) as dispatcher:
            selection = dispatcher.select(PLAIN)
        assert main(["explain", "input=journal", f"model_dir={mixed}", "html=page.html"]) == 0
        text = Path("page.html").read_text()
        assert f"<h1>{selection.kernel_name}</h1>" in text
        assert "N=8 C=64 K=64 G=1 Hi=28 Wi=28 Y=3 X=3 pad_h=1 pad_w=1" in text
        assert 'class="vendor"' in text  # PyTorch's own call is told apart
        assert "PyTorch&#x27;s own call is in place" in text
        assert "no measurements were given (data=)" in text
        assert not re.search(r"https?://|<script|<link|@import|url\(", text)

    def test_measurements_of_the_problem_and_of_near_shapes_are_shown(self, mixed: Path) -> None:
        frame = table()
        frame.to_parquet("measured.parquet")
        problem = GroupedConvProblem.from_dict(frame.iloc[0][list(GroupedConvProblem.column_names())].to_dict())
        with Dispatcher.from_folder(mixed, switches=Switches()) as dispatcher:
            facts = page_facts(dispatcher, problem, Path("measured.parquet"))
            text = page(dispatcher.explain(problem), facts)
        rows = frame[frame["is_valid"] & (frame["N"] == problem.N) & (frame["C"] == problem.C)]
        measured = [r for r in facts.ranked if r.measured is not None]
        assert measured
        assert text.count('class="measured"') == len(measured)
        assert all(min(abs(r.measured - t) for t in rows["tflops"]) < 1e-6 for r in measured if r.measured)
        distances = [n.distance for n in facts.nearby]
        assert distances == sorted(distances)
        assert (distances[0], facts.nearby[0].words) == (0.0, facts.words)

    def test_texts_from_outside_are_escaped(self, mixed: Path) -> None:
        with Dispatcher.from_folder(mixed, switches=Switches()) as dispatcher:
            explanation = {**dispatcher.explain(PLAIN), "cause": "<b>&", "kernel_name": "<i>"}
            text = page(explanation, page_facts(dispatcher, PLAIN, Path("absent")))
        assert "<h1>&lt;i&gt;</h1>" in text
        assert "&lt;b&gt;&amp;" in text

    def test_another_ending_is_refused(self) -> None:
        assert main(["explain", SIZES, "html=page.txt"]) == 2
