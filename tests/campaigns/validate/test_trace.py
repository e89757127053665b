"""GPU minutes of recorded calls are those of the measured times, whoever selects."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from small_model import table, write_model
from synthetic import CONV, problems
from tilewise.campaigns.validate import judge_trace
from tilewise.campaigns.validate._request_trace import trace_page
from tilewise.cli.main import main
from tilewise.dispatch.logs import Request, request_log_text
from tilewise.errors import DataError
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Problem, Target

ASKED = problems(Target.parse(CONV), 45)[30:]  # the table holds the first 40 of them
CALLS = {p: 1000 + i for i, p in enumerate(ASKED)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a bad model and a good one."""
    root = tmp_path_factory.mktemp("models")
    return write_model(root / "before", trees=20, sign=-1.0), write_model(root / "after")


def _ms(model: TrainedModel | None) -> dict[Problem, float]:
    """Return the measured time of the model's selection, or of the fastest kernel."""
    found: dict[Problem, float] = {}
    for problem in ASKED[:10]:
        values = problem.to_dict()
        rows = table()[(table()[list(values)] == pd.Series(values)).all(axis=1) & table()["is_valid"]]
        times = dict(zip(rows["kernel_name"], rows["latency_ms"], strict=True))
        if model is None:
            found[problem] = min(times.values())
        else:
            found[problem] = next(times[n] for k in model.rank(problem) if (n := model.pool.names[k]) in times)
    return found


@pytest.mark.long
def test_minutes_by_hand(folders: tuple[Path, Path]) -> None:
    before, after = map(load_artefact, folders)
    report = judge_trace(CALLS, table(), after, before)
    assert (report["problems"], report["judged"]) == (15, 10)
    assert report["judged_calls"] == sum(list(CALLS.values())[:10])
    for side, model in (("before", before), ("model", after), ("fastest", None)):
        minutes = sum(CALLS[p] * ms for p, ms in _ms(model).items()) / 6e4
        assert report["minutes"][side] == pytest.approx(minutes)
    assert report["saved_minutes"] == pytest.approx(report["minutes"]["before"] - report["minutes"]["model"])
    assert report["saved_minutes"] > 0
    saved = [abs(row["saved_minutes"]) for row in report["per_problem"]]
    assert saved == sorted(saved, reverse=True)
    assert f"| GPU minutes saved | {report['saved_minutes']:.3f} (" in trace_page(report)
    alone = judge_trace(CALLS, table(), after, None)
    assert alone["minutes"] == {k: report["minutes"][k] for k in ("model", "fastest")}
    assert alone["saved_minutes"] is None


def test_a_trace_that_nobody_measured_is_said(folders: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="none of the 5 problems of the trace was measured"):
        judge_trace({p: 1 for p in ASKED[10:]}, table(), load_artefact(folders[1]), None)


@pytest.mark.long
def test_the_verb_writes_both(folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table().to_parquet(tmp_path / "t.parquet")
    requests = Counter({Request(CONV, p, "model"): n for p, n in CALLS.items()})
    (tmp_path / "asked.jsonl").write_text(request_log_text(requests))
    command = ["validate", "mode=trace", f"a={folders[0]}", f"model_dir={folders[1]}", f"data={tmp_path}"]
    assert main(command) == 2
    assert "plan.requests: missing" in capsys.readouterr().err
    assert main([*command, f"plan.requests={tmp_path}/asked.jsonl", f"out={tmp_path}"]) == 0
    assert "GPU minutes saved" in capsys.readouterr().out
    report = json.loads((tmp_path / "validate_trace.json").read_text())
    assert report["judged"] == 10
