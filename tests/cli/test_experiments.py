"""Experiments by the real tools: they train as asked, and nothing is registered or promoted unless asked.

A small project under git and DVC has the pipeline of dvc.yaml over synthetic measurements.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest
import yaml

from synthetic import CONV, measurements
from tilewise.model import load_artefact

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("experiments")]

ROOT = Path(__file__).parents[2]
GIT = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.com"]
FLOORS = {"mean": None, "p10": None}
NAME = f"{CONV}_experiments"


class Project:
    """A project folder with its MLflow store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "TILEWISE_CONF": str(folder / "conf"), "COLUMNS": "200"}
        for name in ("MLFLOW_TRACKING_URI", "DVC_STAGE", "DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
            self.environment.pop(name, None)
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(self, *words: str) -> str:
        """Run a command that must succeed, and return its output."""
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def dvc(self, *words: str) -> str:
        return self.run(sys.executable, "-m", "dvc", *words)

    def commit(self) -> None:
        self.run(*GIT, "add", "-A")
        self.run(*GIT, "commit", "-qm", "state")

    @property
    def client(self) -> mlflow.MlflowClient:
        uri = f"sqlite:///{self.folder / 'mlflow.db'}"
        return mlflow.MlflowClient(uri, uri)

    def trainings(self, experiment: str) -> list[mlflow.entities.Run]:
        found = self.client.get_experiment_by_name(experiment)
        if found is None:
            return []
        return list(self.client.search_runs([found.experiment_id], "tags.`tilewise.kind` = 'train'"))

    def aliases(self) -> dict[str, str]:
        models = self.client.search_registered_models()
        return dict(models[0].aliases) if models else {}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose pipeline has run once: `dvc repro` has put a model into production."""
    folder = tmp_path_factory.mktemp("project")
    project = Project(folder)
    (folder / "data" / CONV).mkdir(parents=True)
    measurements(CONV, 200, 12, failures=0).to_parquet(folder / "data" / CONV / "first.parquet")
    shutil.copytree(ROOT / "conf", folder / "conf")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "dvc.yaml", folder)
    for name in ("MLproject", "python_env.yaml"):
        shutil.copy(ROOT / name, folder)
    (folder / ".gitignore").write_text("/build\n/models\n/data\n/mlflow.db*\n/mlartifacts\n")
    gate = folder / "conf" / "gate" / "default.yaml"
    values = yaml.safe_load(gate.read_text())
    values["floors"] = {"grouped_conv": {"forward": FLOORS}, "gemm": {"universal": FLOORS}}
    values["override"]["reason"] = "small tables of tests"
    gate.write_text(yaml.safe_dump(values | {"min_problems": 5}))
    (folder / "conf" / "tuned" / f"{CONV}.yaml").write_text(
        "# @package model\nn_estimators: 20\nnum_leaves: 15\nshortlist: 0\nn_features: 0\n"
    )
    tune = folder / "conf" / "tune" / "default.yaml"
    tune.write_text(re.sub(r"n_trials: \d+", "n_trials: 0", tune.read_text()))
    project.run("git", "init", "-q")
    project.dvc("init", "-q")
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc" / "config")
    project.run(sys.executable, "-m", "tilewise.cli.compose", "-o", "params.yaml")
    project.commit()
    project.dvc("repro")
    project.commit()
    return project


def test_repro_promotes_and_logs_to_the_targets_experiment(project: Project) -> None:
    assert int(project.aliases()["production"]) == 1
    (run,) = project.trainings(CONV)
    assert run.data.tags["tilewise.source"] == "dvc repro"
    assert run.data.tags["tilewise.git_dirty"] == "no"
    assert run.info.run_name == "repro defaults"
    assert run.info.status == "FINISHED"
    assert len(run.data.tags["mlflow.source.git.commit"]) == 40


def test_repro_again_only_looks_at_production(project: Project) -> None:
    runs = [run.info.run_id for run in project.trainings(CONV)]
    versions = project.client.search_model_versions(f"name='{CONV}'")
    printed = project.dvc("repro")
    assert "in production already" in printed
    assert [line for line in printed.splitlines() if line.startswith("Running stage")] == [
        f"Running stage 'promote@{CONV}':"
    ]
    assert [run.info.run_id for run in project.trainings(CONV)] == runs
    assert len(project.client.search_model_versions(f"name='{CONV}'")) == len(versions)


def test_dvc_shows_chosen_figures(project: Project) -> None:
    shown = json.loads(project.dvc("metrics", "show", "--json"))[""]["data"]
    assert set(shown) == {f"reports/{CONV}/{name}.json" for name in ("summary", "outcome")}
    assert shown[f"reports/{CONV}/outcome.json"]["data"]["outcome"] == "promoted"
    summary = shown[f"reports/{CONV}/summary.json"]["data"]
    assert set(summary) <= {"holdout", "cv", "ceiling"}
    assert set(summary["holdout"]) == {"mean", "median", "p10", "worst", "top3"}


def test_dvc_plots_need_no_network(project: Project) -> None:
    project.dvc("plots", "show")
    page = (project.folder / "dvc_plots" / "index.html").read_text()
    images = {path.name.rpartition("_")[2] for path in (project.folder / "dvc_plots" / "static").iterdir()}
    assert {"efficiency.png", "regret.png", "slices.png"} <= images
    assert page.count("<img") >= len(images)
    shutil.rmtree(project.folder / "dvc_plots")


def test_an_experiment_trains_as_asked_and_promotes_nothing(project: Project) -> None:
    before = project.aliases()
    # 200 is the default of conf/model; the target's tuned file says 20.
    printed = project.dvc("exp", "run", "-n", "asked", "-S", "model.n_estimators=200", "-S", "model.num_leaves=7")
    assert "publishes nothing by itself" in printed
    assert project.aliases() == before
    params = yaml.safe_load((project.folder / "params.yaml").read_text())["model"]
    (run,) = project.trainings(NAME)
    manifest = load_artefact(project.folder / "models" / CONV).manifest["parameters"]
    for values in (params, manifest, {name: int(run.data.params[name]) for name in ("n_estimators", "num_leaves")}):
        assert (values["n_estimators"], values["num_leaves"]) == (200, 7)
    assert run.info.run_name.startswith("asked model.n_estimators=200,model.num_leaves=7")
    assert run.data.tags["tilewise.dvc_experiment"] == "asked"
    assert "200" in project.dvc("params", "diff", "HEAD")
    record = json.loads((project.folder / "reports" / CONV / "promotion.json").read_text())
    assert record["outcome"] == "unpublished"

    # One command promotes it: the gate decides, on the run's own model.
    project.run("git", "checkout", "-q", ".")
    project.dvc("checkout", "-q", "--force")
    words = ("tilewise", "promote", f"run={run.info.run_id}", f"data=build/prepared/{CONV}.parquet")
    done = subprocess.run(words, cwd=project.folder, env=project.environment, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    version = project.client.get_model_version(CONV, "2")
    assert version.run_id == run.info.run_id
    assert version.tags["source"] == "command line"


def test_a_multirun_leaves_the_pipelines_files_alone_and_ends_with_a_table(project: Project) -> None:
    model = project.folder / "models" / CONV / "train_manifest.json"
    before, aliases = model.read_bytes(), project.aliases()
    data = f"data=build/prepared/{CONV}.parquet"
    printed = project.run("tilewise", "train", "-m", data, "model.num_leaves=4,5", "model.n_estimators=5")
    assert model.read_bytes() == before
    assert project.aliases() == aliases
    table = printed[printed.rindex("job") :]
    assert all(f"model.num_leaves={leaves}" in table for leaves in (4, 5))
    folders = sorted((project.folder / "build" / "multirun").rglob("train_manifest.json"))
    assert [load_artefact(f.parent).manifest["parameters"]["num_leaves"] for f in folders] == [4, 5]
    names = {run.info.run_name for run in project.trainings(NAME) if run.data.tags["tilewise.source"] == "multirun"}
    assert names == {f"model.n_estimators=5,model.num_leaves={leaves}" for leaves in (4, 5)}


def test_mlflow_run_lands_in_the_targets_experiment(project: Project) -> None:
    before = project.aliases()
    words = ["-P", "model.n_estimators=6", "-P", f"data=build/prepared/{CONV}.parquet", "-P", "out=build/other"]
    project.environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{project.folder / 'mlflow.db'}"
    try:
        project.run(sys.executable, "-m", "mlflow", "run", ".", "-e", "train", "--env-manager", "local", *words)
    finally:
        del project.environment["MLFLOW_TRACKING_URI"]
    (run,) = (r for r in project.trainings(NAME) if r.data.tags["tilewise.source"] == "mlflow run")
    assert run.data.params["n_estimators"] == "6"
    shell = project.client.get_run(run.data.tags["tilewise.project_run"])
    assert shell.data.tags["tilewise.training_run"] == run.info.run_id
    assert project.aliases() == before


def test_a_killed_training_says_so(project: Project) -> None:
    data = f"data=build/prepared/{CONV}.parquet"
    words = ["tilewise", "train", data, "out=build/killed", "model.n_estimators=100000", "model.num_leaves=4"]
    process = subprocess.Popen(words, cwd=project.folder, env=project.environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (found := _with_trees(project, "100000")) and time.monotonic() < end:
        time.sleep(0.5)
    assert found, "the run is open while the training works"
    assert found[0].info.status == "RUNNING"
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    (run,) = _with_trees(project, "100000")
    assert run.info.status == "KILLED"
    assert run.info.end_time is not None


def _with_trees(project: Project, trees: str) -> list[mlflow.entities.Run]:
    return [run for run in project.trainings(NAME) if run.data.params.get("n_estimators") == trees]


def test_equal_content_is_linked_to_the_first_run(project: Project) -> None:
    (first,) = project.trainings(CONV)
    project.run("tilewise", "train", f"data=build/prepared/{CONV}.parquet", "out=build/again")
    again = next(r for r in project.trainings(NAME) if r.info.run_name == "defaults")
    assert again.data.tags["tilewise.content_hash"] == first.data.tags["tilewise.content_hash"]
    assert again.data.tags["tilewise.same_content_as"] == first.info.run_id


def test_changed_sources_are_told_and_tagged(project: Project) -> None:
    tuned = project.folder / "conf" / "tuned" / f"{CONV}.yaml"
    before = tuned.read_text()
    tuned.write_text(before.replace("n_estimators: 20", "n_estimators: 21"))
    try:
        project.run(sys.executable, "-m", "tilewise.cli.compose", "-o", "params.yaml")
        printed = project.dvc("repro")
    finally:
        tuned.write_text(before)
        project.run("git", "checkout", "-q", ".")
    assert "the sources differ from the commit" in printed
    newest = max(project.client.search_model_versions(f"name='{CONV}'"), key=lambda v: int(v.version))
    assert f"conf/tuned/{CONV}.yaml" in newest.tags["git_dirty"]
