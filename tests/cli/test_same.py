"""`make same`: every function that decides a stage's output runs for the fingerprints; only sources are accepted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import yaml

import tilewise
from committed import content
from synthetic import CONV, measurements
from tilewise.cli import same
from tilewise.cli._fingerprints import fingerprints
from tilewise.cli.compose import compose, params_text
from tilewise.cli.main import main
from tilewise.errors import ConfigError
from tilewise.ops import Target

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SRC = Path(tilewise.__file__).parent
SMALL = ("tune.n_trials=2", "tune.n_estimators=10", "model.n_estimators=20", "model.num_leaves=15", "n_splits=2")
DVC = [sys.executable, "-m", "dvc"]
# Packages that stages depend on, by dvc.yaml.
DECISIVE = ("arch.py", "core/", "data/", "evaluate/", "features/", "kernels/", "metrics.py", "model/", "ops/", "train/")
# Functions that a stage calls to refuse, to print, to register or to choose a reader, not for the files in the lock.
WITHOUT_OUTPUT = {
    "Prepared._with", "Prepared.quarantined", "Prepared.quarantined_share", "Problem.in_words",
    "TrainedModel.content_hash", "content_hash",
    "open_measurements", "read_table_or_import", "source_changes", "with_ck_slices",
}  # fmt: skip

Functions = set[tuple[str, str]]


@contextmanager
def _called() -> Iterator[Functions]:
    """Collect file and name of the functions of :data:`DECISIVE` that run inside the block."""
    found: Functions = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SRC)):
            name = Path(file).relative_to(SRC).as_posix()
            if name.startswith(DECISIVE) and not frame.f_code.co_name.startswith("<"):
                found.add((name, frame.f_code.co_qualname))

    threading.setprofile(note)  # of threads that start now: some read ahead
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with measurements and a composed configuration."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data" / CONV).mkdir(parents=True)
    measurements(n_problems=400, n_kernels=10, repeats=5, seed=4).to_parquet(folder / "data" / CONV / "table.parquet")
    (folder / "params.yaml").write_text(params_text(SMALL))
    return folder


@pytest.fixture(scope="module")
def by_stages(project: Path) -> Functions:
    """Return the functions that the stages run, apart from those with cached results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setattr("tilewise.cli.models.train._plots", lambda *_: [])
        _run_stages()
        with _called() as functions:
            _run_stages()
    return functions


def _run_stages() -> None:
    prepared = f"data=build/prepared/{CONV}.parquet"
    assert main(["data", "prepare", "params=params.yaml"]) == 0
    assert main(["train", "params=params.yaml", prepared]) == 0
    assert main(["evaluate", "params=params.yaml", prepared]) == 0


@pytest.fixture(scope="module")
def by_fingerprints(project: Path, by_stages: Functions) -> Functions:
    """Return the functions that the comparison runs."""
    assert by_stages
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setattr("tilewise.cli._fingerprints.ONE_IN", 2)  # some steps need that many problems
        with _called() as functions:
            _, frame = same._outputs(CONV)
            fingerprints(compose(["params=params.yaml"]), frame, Target.parse(CONV), Path("models") / CONV)
    return functions


def test_the_comparison_covers_every_function_of_the_stages(by_stages: Functions, by_fingerprints: Functions) -> None:
    uncovered = {(file, name) for file, name in by_stages - by_fingerprints if name not in WITHOUT_OUTPUT}
    assert sorted(uncovered) == []


class TestDifferences:
    """Outputs are compared with the checksums in dvc.lock, training with the recorded fingerprints."""

    @pytest.fixture
    def locked(self, project: Path, by_stages: Functions, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return the project's folder with a lock and fingerprints of the current sources."""
        assert by_stages
        monkeypatch.chdir(project)
        outputs, _ = same._outputs(CONV)
        outs = [{"path": path, "md5": md5} for path, md5 in {**outputs, f"models/{CONV}": "1" * 32}.items()]
        stages = {f"{stage}@{CONV}": {"outs": outs if stage == "train" else []} for stage in same.STAGES}
        (project / "dvc.lock").write_text(yaml.safe_dump({"stages": stages}))
        same.record(CONV)
        return project

    def test_none_where_nothing_changed(self, locked: Path) -> None:
        assert locked.is_dir()
        assert same.differences(CONV) == []

    def test_another_fit_is_named(self, locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert locked.is_dir()
        monkeypatch.setattr("tilewise.cli._fingerprints.N_TREES", 9)
        assert same.differences(CONV) == [f"{CONV}: fit"]

    def test_fingerprints_of_another_model_are_refused(self, locked: Path) -> None:
        file = locked / "models" / CONV / "feature_importances_tflops.json"
        content = file.read_bytes()
        file.write_bytes(content + b" ")
        with pytest.raises(ConfigError, match=r"belongs to another model than models/\w+; see `make fingerprints`"):
            same.differences(CONV)
        file.write_bytes(content)

    def test_an_incomplete_lock_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match=r"dvc\.lock has no complete entry for .*; `make repro` writes it"):
            same.differences(CONV)


class TestAccept:
    """Sources are accepted in dvc.lock without running a stage; changed data is refused."""

    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a git and DVC project whose four stages depend on a source, a table and a setting."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "formula.py").write_text("# a comment\n")
        (tmp_path / "table").write_text("1")
        stages = {
            name: {
                "foreach": [CONV],
                "do": {
                    "cmd": f"touch {name} && echo run >> runs",
                    "deps": ["src/formula.py", "table"],
                    "outs": [name],
                },
            }
            for name in same.STAGES
        }
        (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
        for command in (["git", "init", "-q"], [*DVC, "init", "-q"], [*DVC, "repro", "-q"]):
            subprocess.run(command, check=True, capture_output=True)
        return tmp_path

    def test_a_source_is_accepted_in_the_lock(self, repository: Path) -> None:
        (repository / "src" / "formula.py").write_text("# a better comment\n")
        same.accept(CONV)
        subprocess.run([*DVC, "repro", "-q"], check=True, capture_output=True)
        assert (repository / "runs").read_text() == "run\n" * len(same.STAGES)

    def test_changed_data_is_refused(self, repository: Path) -> None:
        (repository / "table").write_text("2")
        with pytest.raises(ConfigError, match="not only sources have changed, but table; `make repro` is due"):
            same.accept(CONV)


def test_committed_fingerprints_belong_to_the_committed_lock(tmp_path: Path) -> None:
    lock = yaml.safe_load((ROOT / "dvc.lock").read_text())["stages"]
    (target,) = compose([f"params={ROOT / 'params.yaml'}"]).targets
    (model,) = lock[f"train@{target}"]["outs"]
    recorded = json.loads((ROOT / "reports" / target / "fingerprints.json").read_text())
    assert content(model["md5"]).is_file(), "`make same` needs the committed model: run `make fingerprints`"
    for file in json.loads(content(model["md5"]).read_text()):
        shutil.copy(content(file["md5"]), tmp_path / file["relpath"])
    assert recorded["model"] == same.model_digest(tmp_path), "run `make fingerprints` after `make repro`"
