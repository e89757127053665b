"""Tables with further rows, or without some, and pools without kernels: none hides that a candidate is worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from registry.promotion.ways import BAD, GOOD, KEY, REASON, SMALL, TARGET, Promote, production
from small_model import _parts, table, write_model
from synthetic import CONV
from tilewise.data import TargetTable
from tilewise.errors import ConfigError
from tilewise.gate import Thresholds
from tilewise.kernels import Pool
from tilewise.model import TrainedModel, load_artefact, write_artefact
from tilewise.registry.promotion import Override, Promotion, PromotionRules, promote

pytestmark = pytest.mark.long

# The bad model loses 65 points of eight problems' mean: among a hundred problems these limits would let it pass.
WIDE = dataclasses.replace(SMALL, mean_drop=10, problem_drop=100)
LAYERS = pd.concat([table().assign(N=table()["N"] * i) for i in range(3, 26)], ignore_index=True)


def picks(model: TrainedModel, rows: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, str]]:
    """Yield the valid rows of each problem, and the kernel among them that `model` selects, or ""."""
    for _, group in rows[rows["is_valid"]].groupby(KEY, dropna=False):
        problem = TARGET.problem(group[KEY].to_dict("records")[0])
        order = [model.pool.names[i] for i in model.rank(problem)]
        known = set(group["kernel_name"])
        yield group, next((name for name in order if name in known), "")


def with_kernels(folder: Path, kept: list[int]) -> Path:
    """Write the good model with some kernels of its pool."""
    parts = _parts(CONV, 60, 1.0, "fewer kernels", False)
    assert parts.cost_model is not None
    pool = Pool(TARGET.op, TARGET.variant, TARGET.dtype, tuple(parts.pool.kernels[i] for i in kept))
    weights = parts.cost_model.weights[[*kept, len(parts.pool)]]  # the last one serves unknown kernels
    cost_model = dataclasses.replace(parts.cost_model, weights=weights)
    write_artefact(folder, dataclasses.replace(parts, pool=pool, cost_model=cost_model))
    return folder


def judged(model: Path, frame: pd.DataFrame, reports: Path, thresholds: Thresholds = SMALL) -> Promotion:
    return promote(model, frame, PromotionRules(thresholds, 0.18, override=Override(REASON)), reports)


@pytest.mark.parametrize("place", ["before", "after"])
def test_rows_with_better_rates_beside_those_of_a_bad_model_s_selections(
    go: Promote, tmp_path: Path, place: str
) -> None:
    """Of the same run, so that no median is taken: the model would be judged by one row and compared by the other."""
    go(GOOD)
    bad = load_artefact(write_model(tmp_path / "bad", **BAD))
    frames = []
    for rows, name in picks(bad, table()):
        best = rows.loc[rows["tflops"].idxmax(), ["tflops", "latency_ms"]].to_dict()
        fake = rows[rows["kernel_name"] == name].assign(**best)
        frames += [fake, rows] if place == "before" else [rows, fake]
    frame = pd.concat(frames, ignore_index=True)
    if place == "after":
        assert go(BAD, frame).outcome == "refused", "the first row counts"
    else:
        with pytest.raises(ConfigError, match=r"must agree with those that it was judged on, but the candidate's mean"):
            go(BAD, frame)
    assert production() == 1


@pytest.mark.parametrize("how", ["one kernel", "equal rates", "two rates"])
def test_further_problems_do_not_hide_a_loss(go: Promote, tmp_path: Path, how: str) -> None:
    """Problems on which every model is right, or on which these two select equally fast kernels."""
    go(GOOD)
    good, bad = (load_artefact(write_model(tmp_path / str(i), **m)) for i, m in enumerate((GOOD, BAD)))
    rows = TargetTable.of(LAYERS, TARGET).holdout(0.18).rows.assign(tflops=100.0, latency_ms=1.0)
    if how == "one kernel":
        rows = rows[rows["is_valid"]].drop_duplicates(KEY)
    elif how == "two rates":
        selected = [name for model in (good, bad) for _, name in picks(model, rows)]
        other = next(name for name in rows["kernel_name"].unique()[::-1] if selected.count(name) == 0)
        rows = rows.assign(tflops=np.where(rows["kernel_name"] == other, 50.0, 100.0))
    frame = pd.concat([table(), rows], ignore_index=True)
    promotion = judged(write_model(tmp_path / "bad", **BAD), frame, tmp_path / "reports", WIDE)
    assert promotion.outcome == "refused"
    assert promotion.gate is not None
    if how == "two rates":
        assert promotion.gate.n_problems > 50
        assert promotion.reasons[0].startswith("on the 8 problems that production was judged on, mean efficiency ")
    else:
        assert promotion.gate.n_problems == 8
    assert production() == 1


def test_kernels_of_production_left_out_of_pool_and_table(go: Promote, tmp_path: Path) -> None:
    """The candidate lacks the fastest kernels, and so does the table: among the rest it is as good as production."""
    go(GOOD)
    good = load_artefact(write_model(tmp_path / "good", **GOOD))
    selected = pd.Series([name for _, name in picks(good, TargetTable.of(table(), TARGET).holdout(0.18).rows)])
    gone = selected.value_counts().index[0]
    fewer = with_kernels(tmp_path / "fewer", [i for i, name in enumerate(good.pool.names) if name != gone])
    with pytest.raises(ConfigError, match=r"the kernels that production selects are no longer measured for \d of 8"):
        judged(fewer, table()[lambda f: f["kernel_name"] != gone], tmp_path / "reports")
    assert production() == 1


def test_a_first_model_whose_kernels_serve_few_problems(registry: str, tmp_path: Path) -> None:
    """The floors count the other problems as lost."""
    good = load_artefact(write_model(tmp_path / "good", **GOOD))
    rows = TargetTable.of(table(), TARGET).holdout(0.18).rows
    valid = rows[rows["is_valid"]]
    few = valid["kernel_name"].value_counts().index[-1]
    n = len(valid[valid["kernel_name"] == few][KEY].drop_duplicates())
    model = with_kernels(tmp_path / "few", [good.pool.names.index(few)])
    frame = rows[(rows["kernel_name"] != few) | rows["is_valid"]]
    # On the problems that it serves it is the fastest kernel.
    frame = frame.assign(tflops=frame["tflops"].where(frame["kernel_name"] != few, 10_000.0))
    promotion = judged(model, frame, tmp_path / "reports")
    assert n < 8
    assert promotion.gate is not None
    assert (promotion.outcome, promotion.gate.n_problems) == ("refused", 8)
    assert promotion.gate.candidate["mean"] == pytest.approx(n / 8)
