"""One iteration of the closed loop, by the commands of docs/closed-loop.md, makes a running dispatcher select better.

Its requests come back as measurements, as a better model and, without a restart, as selections. A made-up table
replaces the GPU. The first model has seen no grouped convolution and none of the kernels that only serve those.
Everything else is real: the dispatcher is a separate process, and registry, gate and DVC are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from store import fresh_store
from synthetic import CONV, measurements
from tilewise.cli.main import main
from tilewise.data import group_keys, holdout_mask, problems_of
from tilewise.dispatch.logs import count_requests
from tilewise.ops import Problem, Target

pytestmark = pytest.mark.long

TARGET = Target.parse(CONV)
DVC = [sys.executable, "-m", "dvc"]
EVERYTHING = measurements(CONV, 240, 24, failures=0)  # in place of a GPU's measurements; of 120 the gate judged by 12
GROUPED = EVERYTHING["G"] > 1
HELD = holdout_mask(TARGET.op, group_keys(TARGET.op, EVERYTHING), 0.18)
UNSEEN = problems_of(EVERYTHING[GROUPED & ~HELD], TARGET)
ELSEWHERE = problems_of(EVERYTHING[~GROUPED & HELD], TARGET)
SMALL = ["tuned=none", "model.n_estimators=20", "model.num_leaves=15", "n_splits=2", "tune.n_trials=0", "threads=1"]
PREPARED = f"build/prepared/{CONV}.parquet"
NEW = f"data/{CONV}/turn-1.parquet"
SECONDS = 60.0  # in which a new model must be found


class Serving:
    """A process that selects, refreshes its model, and logs its requests."""

    def __init__(self, uri: str) -> None:
        variables = {"TILEWISE_REFRESH_S": "0.3", "TILEWISE_RECORD": "asked.jsonl", "MLFLOW_TRACKING_URI": uri}
        command = [sys.executable, str(Path(__file__).with_name("asker.py")), CONV]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | variables)

    def ask(self, problems: Sequence[Problem]) -> tuple[int, list[str]]:
        """Return the version that serves, and the kernel that it selects for each problem."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([p.to_dict() for p in problems]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer["version"], answer["kernels"]

    def ask_until(self, version: int, problems: Sequence[Problem]) -> list[str]:
        """Repeat the requests until a version serves."""
        end = time.monotonic() + SECONDS
        while (answer := self.ask(problems))[0] != version and time.monotonic() < end:
            time.sleep(0.2)
        assert answer[0] == version
        return answer[1]

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fresh_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project under git and DVC whose measurements lack the grouped problems."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilewise.registry.promotion._promote.log_plots", lambda *_: None)  # slower than all the rest
    monkeypatch.setattr("tilewise.cli.models.train._plots", lambda *_: [])
    Path("data", CONV).mkdir(parents=True)
    EVERYTHING.to_parquet("everything.parquet")
    EVERYTHING[~GROUPED].to_parquet(f"data/{CONV}/first.parquet")
    for command in (["git", "init", "-q"], [*DVC, "init", "-q"]):
        subprocess.run(command, check=True, capture_output=True)
    return tmp_path


def _efficiency(problems: Sequence[Problem], kernels: Sequence[str]) -> float:
    """Return the mean efficiency of these selections."""
    names = list(problems[0].column_names())
    valid = EVERYTHING[EVERYTHING["is_valid"]]
    best = valid.groupby(names)["latency_ms"].min()
    time_of = valid.set_index([*names, "kernel_name"])["latency_ms"]
    keys = [tuple(p.to_dict().values()) for p in problems]
    return float(np.mean([best[key] / time_of[(*key, kernel)] for key, kernel in zip(keys, kernels, strict=True)]))


def _do(*words: str, uri: str) -> int:
    with patch.dict(os.environ, MLFLOW_TRACKING_URI=uri):  # not every verb reads tracking.uri
        return main(list(words))


def _train_and_promote(uri: str) -> int:
    floors = [f"gate.floors.grouped_conv.forward.{name}=null" for name in ("mean", "p10")]
    floors += ["gate.min_problems=1", "gate.override.reason=test"]
    assert _do("data", "prepare", uri=uri) == 0
    assert _do("train", f"data={PREPARED}", *SMALL, uri=uri) == 0
    return _do("promote", f"data={PREPARED}", *floors, uri=uri)


def _data_version() -> str:
    subprocess.run([*DVC, "add", "-q", "data"], check=True, capture_output=True)
    return Path("data.dvc").read_text()


def _asked(count: int) -> None:
    """Wait for the request log, which the dispatcher writes every few seconds."""
    end = time.monotonic() + SECONDS
    while not (Path("asked.jsonl").exists() and sum(count_requests("asked.jsonl", TARGET).values()) >= count):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_one_iteration_recovers_the_losses_on_unseen_shapes_in_a_running_dispatcher(
    project: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train_and_promote(uri) == 0
    first = _data_version()
    serving = Serving(uri)
    before = {part: serving.ask_until(1, part) for part in (UNSEEN, ELSEWHERE)}
    serving.ask(UNSEEN[:5] * 20)
    _asked(len(UNSEEN) + len(ELSEWHERE) + 100)

    planned = ["plan", "plan.requests=asked.jsonl", "collect.run_id=turn-1", "output=plan.json"]
    assert _do(*planned, uri=uri) == 0
    said = capsys.readouterr().out
    assert f"{len(UNSEEN)} of {len(UNSEEN)} problems" in said
    assert "GPU minutes saved, expected: " in said
    assert _do("collect", "input=plan.json", "collect.simulate=everything.parquet", f"output={NEW}", uri=uri) == 0
    assert _data_version() != first
    (project / f"models/{CONV}").rename(project / "before")

    assert _train_and_promote(uri) == 0
    assert _do("promote", f"data={PREPARED}", uri=uri) == 0  # again: nothing changes

    after = {part: serving.ask_until(2, part) for part in (UNSEEN, ELSEWHERE)}
    serving.close()
    lost, left = (1 - _efficiency(UNSEEN, picks[UNSEEN]) for picks in (before, after))
    assert lost > 0.02, "the first model must not know these shapes, or nothing is shown"
    assert left < lost / 2
    assert _efficiency(ELSEWHERE, after[ELSEWHERE]) > _efficiency(ELSEWHERE, before[ELSEWHERE]) - 0.005

    reported = ["validate", "mode=trace", "plan.requests=asked.jsonl", "a=before", "out=."]
    assert _do(*reported, uri=uri) == 0
    report: dict[str, Any] = json.loads(Path("validate_trace.json").read_text())
    assert report["saved_minutes"] > 0
    assert report["minutes"]["fastest"] <= report["minutes"]["model"] < report["minutes"]["before"]

    assert _do(*planned[:2], "collect.run_id=turn-2", "output=again.json", uri=uri) == 2
    assert "no problem is left to plan" in capsys.readouterr().err
