"""The leaderboard: baselines learn from training problems alone, submissions are checked, the page is generated."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import report
from benchmarks.leaderboard import baselines, figures, score
from benchmarks.leaderboard.submissions import Submission, submissions
from benchmarks.results import RESULTS, load

from small_model import KERNELS, PROBLEMS, with_vendor
from synthetic import CONV, measurements
from tilewise.data import TargetTable
from tilewise.errors import DataError
from tilewise.markdown import fill
from tilewise.metrics import efficiency_figures
from tilewise.ops import Target

ROOT = Path(__file__).parents[1]
TARGET = Target.parse(CONV)
FRACTION = 0.5
ENTRY = {"name": "Mine", "authors": "me", "date": "2026-01-02", "link": "https://example.org", "learnt_from": "train"}


@pytest.fixture(scope="module")
def split() -> baselines.Split:
    """Return measurements with repeats, in which kernels fail now and then."""
    frame = measurements(CONV, PROBLEMS, KERNELS, repeats=20, failures=0.1)
    return baselines.Split.of(with_vendor(frame), TARGET, FRACTION)


def efficiency(split: baselines.Split, method: str) -> np.ndarray:
    """Return the efficiency of a method's selections, of shape (problems,)."""
    chosen = baselines.selections(split, baselines.METHODS[method](split))
    key = list(TARGET.problem_type.column_names())
    best = split.held.rows.groupby(key, as_index=False)["tflops"].max().rename(columns={"tflops": "best"})
    found = chosen.merge(split.held.rows, on=[*key, "kernel_name"]).merge(best, on=key)
    assert len(found) == len(chosen) == split.held.n_problems
    return np.asarray(found["tflops"] / found["best"], dtype=np.float64)


class TestBaselines:
    def test_the_default_kernel_is_selected_wherever_it_is_valid(self, split: baselines.Split) -> None:
        chosen = baselines.selections(split, baselines.default_kernel(split))
        default = split.pool.names[0]
        valid = split.held.rows["kernel_name"] == default
        assert (chosen["kernel_name"] == default).sum() == valid.sum() > 0

    def test_the_most_frequent_winner_is_that_of_the_training_problems(self, split: baselines.Split) -> None:
        key, rows = list(TARGET.problem_type.column_names()), split.training.rows
        winner = rows.loc[rows.groupby(key)["tflops"].idxmax(), "kernel_name"].mode().iloc[0]
        chosen = baselines.selections(split, baselines.most_frequent_winner(split))
        assert (chosen["kernel_name"] == winner).mean() > 0.5

    @pytest.mark.parametrize("method", ["cost model alone", "plain LightGBM"])
    def test_what_learns_is_better_than_a_constant(self, method: str, split: baselines.Split) -> None:
        assert efficiency(split, method).mean() > efficiency(split, "default kernel").mean()

    def test_no_baseline_knows_the_holdout(self, split: baselines.Split) -> None:
        """Other measurements of the holdout problems change no score."""
        held = split.held.rows.assign(tflops=split.held.rows["tflops"].to_numpy()[::-1])
        other = dataclasses.replace(split, held=TargetTable(TARGET, held))
        for method in ("default kernel", "most frequent winner", "plain LightGBM"):
            np.testing.assert_array_equal(baselines.METHODS[method](split), baselines.METHODS[method](other))


@pytest.mark.long
def test_scores_are_written_with_the_vendor_and_the_submissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: baselines.Split
) -> None:
    folder = tmp_path / "submissions" / "mine"
    folder.mkdir(parents=True)
    (folder / "entry.json").write_text(json.dumps(ENTRY))
    baselines.selections(split, -baselines.default_kernel(split)).to_csv(folder / f"{CONV}.csv", index=False)
    split.frame.to_parquet(tmp_path / "table.parquet")
    monkeypatch.setattr(score, "HOLDOUT", FRACTION)
    monkeypatch.setattr(score, "submissions", lambda target: submissions(target, tmp_path / "submissions"))
    result = score.measure(TARGET, tmp_path / "table.parquet", tmp_path / "scratch")
    entries = {entry["method"]: entry for entry in result["entries"]}
    assert list(entries) == [*baselines.METHODS, "vendor", "Mine"]
    for method in ("default kernel", "plain LightGBM"):
        expected = efficiency_figures(efficiency(split, method))
        shown = {name: entries[method][name] for name in score.FIGURES}
        assert shown == pytest.approx({name: expected[name] for name in score.FIGURES}, abs=1e-6)
        assert entries[method]["vendor"]["n_problems"] == entries["vendor"]["n_problems"]
    assert (entries["Mine"]["authors"], entries["Mine"]["link"]) == ("me", "https://example.org")
    ours = {"holdout": {name: 1.0 for name in score.FIGURES} | {"n_problems": 9}, "vendor": None}
    (tmp_path / f"target_{CONV}.json").write_text(json.dumps({"target": CONV, **ours}))
    (tmp_path / f"leaderboard_{CONV}.json").write_text(json.dumps(result))
    blocks = figures.blocks(tmp_path)
    assert f"| `{CONV}` | 9 | " in blocks["leaderboard"]
    assert "| 100.0 / 100.0 / 100 | " in blocks["leaderboard"]
    assert f"| `{CONV}` | [Mine](https://example.org) | me | " in blocks["leaderboard-submissions"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({k: v for k, v in ENTRY.items() if k != "date"}, r"entry\.json: the keys must be name, authors, date"),
        ({**ENTRY, "more": ""}, "the keys must be"),
        ({**ENTRY, "name": "a|b"}, r"name must be a text of one line without \|, got 'a|b'"),
        ({**ENTRY, "authors": ["me"]}, r"authors must be a text of one line .*, got \['me'\]"),
    ],
)
def test_damaged_metadata_are_refused(values: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "entry.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=message):
        Submission.read(tmp_path)


def test_the_page_shows_the_committed_results() -> None:
    text = report.LEADERBOARD.read_text()
    assert fill(text, figures.blocks(RESULTS)) == text, "run `python -m benchmarks.report`"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("leaderboard_*.json")), ids=lambda path: path.stem)
def test_a_result_has_every_baseline_on_the_problems_that_tilewise_was_judged_on(path: Path) -> None:
    result = load(path)
    ours = load(RESULTS / f"target_{result['target']}.json")
    entries = {entry["method"]: entry for entry in result["entries"]}
    assert {*baselines.METHODS} <= {*entries}
    assert {entries[method]["n_problems"] for method in baselines.METHODS} == {ours["holdout"]["n_problems"]}
    assert result["split_rule"] == ours["split_rule"]
    assert all(0 < e["min_efficiency"] <= e["p10_efficiency"] <= 1 for e in entries.values())
