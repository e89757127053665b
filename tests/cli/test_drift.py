"""tilewise drift from the command line: files, MLflow's run, and mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import mlflow
import numpy as np
import pytest

from calibrations import one_bin
from gate.shadowed import observed
from small_model import write_model
from store import fresh_store
from synthetic import CONV, problems
from tilewise.cli.main import main
from tilewise.dispatch.logs import Request, request_log_text
from tilewise.metrics import DEPTH
from tilewise.model import load_artefact
from tilewise.ops import Target

SHAPES = list({p.group_key: p for p in problems(Target.parse(CONV), 8)}.values())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model that knows the first half of the shapes only."""
    keys = np.array([p.group_key for p in SHAPES[: len(SHAPES) // 2]])
    return write_model(tmp_path / "m", trees=2, calibration=one_bin(keys, 0.0, 1, [np.array([0.1])] * DEPTH))


@pytest.mark.long
def test_requests_and_observations_become_files_and_a_run(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requests.jsonl").write_text(request_log_text({Request(CONV, p, "model"): 3 for p in SHAPES}))
    journal = tmp_path / "journal.jsonl"
    served = load_artefact(model).content_hash
    lines = [o.dumps().replace(o.production.content_hash, served) for o in observed([2.0, 1.0])]
    journal.write_text("".join(f"{line}\n" for line in lines))
    uri = fresh_store(tmp_path / "store")
    files = [f"input={tmp_path / 'requests.jsonl'}", f"gate.shadow={journal}", f"out={tmp_path / 'out'}"]
    assert main(["drift", f"model_dir={model}", f"tracking.uri={uri}", *files]) == 0
    assert "all=all" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "drift.json").read_text())
    everything = report["rows"][0]
    assert (report["content_hash"], everything["timed"]) == (served, 2)
    assert everything["regret"] > 0
    assert everything["far_requests"] > 0.3
    rows = list(csv.DictReader((tmp_path / "out" / "drift.csv").open()))
    assert [r["group"] for r in rows] == [f"{r['slice']}={r['value']}" for r in report["rows"]]
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name(CONV)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["drift/all/all/regret"] == pytest.approx(everything["regret"])
    assert {a.path for a in client.list_artifacts(run.info.run_id, "drift")} == {"drift/drift.csv", "drift/drift.json"}


def test_it_needs_requests_or_observations(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", f"model_dir={model}"]) == 2
    assert "drift needs requests or observations: input=FILE of TILEWISE_RECORD" in capsys.readouterr().err
