"""Drift counts requests beyond the calibration's reach, and weights regret by GPU time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrations import one_bin
from small_model import write_model
from synthetic import CONV, problems
from tilewise.errors import DataError
from tilewise.evaluate import TimedPick, drift_rows
from tilewise.metrics import DEPTH
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Problem, Target

SHAPES = list({p.group_key: p for p in problems(Target.parse(CONV), 24)}.values())
KNOWN, STRANGE = SHAPES[:-4], SHAPES[-4:]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """Return a model whose calibration reaches no farther than the known shapes."""
    calibration = one_bin(np.array([p.group_key for p in KNOWN]), 0.0, 1, [np.array([0.1])] * DEPTH)
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / "m", trees=2, calibration=calibration))


def test_shares_count_problems_and_requests(model: TrainedModel) -> None:
    requests: dict[Problem, int] = dict.fromkeys(KNOWN, 1) | dict.fromkeys(STRANGE, 10)
    everything, *slices = drift_rows(model, requests, {})
    assert (everything["problems"], everything["requests"]) == (len(SHAPES), len(KNOWN) + 40)
    assert everything["far_problems"] == pytest.approx(4 / len(SHAPES))
    assert everything["far_requests"] == pytest.approx(40 / (len(KNOWN) + 40))
    assert (everything["timed"], everything["regret"]) == (0, None)
    sizes = [row for row in slices if row["slice"] == "size"]
    assert sum(row["requests"] for row in sizes) in (0, everything["requests"])  # a label with one value is left out
    near = next(row for row in slices if (row["slice"], row["value"]) == ("distance", "0"))
    assert near["far_problems"] == 0.0


def test_regret_is_that_of_gpu_time(model: TrainedModel) -> None:
    timed: dict[Problem, TimedPick] = {
        KNOWN[0]: TimedPick(calls=10, ms=1.0, best_ms=0.5),
        KNOWN[1]: TimedPick(calls=1, ms=90.0, best_ms=90.0),
    }
    everything = drift_rows(model, {}, timed)[0]
    assert everything["regret"] == pytest.approx(5 / 100)
    assert (everything["timed"], everything["requests"]) == (2, 11)


def test_nothing_to_report_on_is_an_error(model: TrainedModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="drift needs at least one request; set TILEWISE_RECORD"):
        drift_rows(model, {}, {})
    bare = load_artefact(write_model(tmp_path / "bare", trees=2))
    with pytest.raises(DataError, match="drift needs a model with a calibration; train it again"):
        drift_rows(bare, dict.fromkeys(KNOWN, 1), {})
