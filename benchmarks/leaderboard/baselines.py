"""Selections of the methods that a learnt model has to beat, for the holdout problems of a target.

Each method scores the holdout's measured candidates, knowing the training problems only; its selection is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import lightgbm as lgb
import numpy as np
import pandas as pd

from tilewise.arch import load_arch
from tilewise.data import TargetTable
from tilewise.kernels import Pool
from tilewise.ops import OPS, Target
from tilewise.train import Floats, ModelSettings, Table, build_table, pool_of
from tilewise.train.cost_model import Baselines

# LightGBM's defaults, with five times its number of trees.
PLAIN = {"objective": "regression", "verbose": -1, "num_threads": 1, "deterministic": True, "seed": 0}
PLAIN_TREES = 500


@dataclass(frozen=True)
class Split:
    """The measurements of a target, on both sides of its holdout.

    Attributes:
        frame: the measurement table.
        fraction: share of the split keys that is held out.
        pool: all kernels with a valid row.
        training: valid labels outside the holdout.
        held: valid labels of the holdout problems.
    """

    frame: pd.DataFrame
    fraction: float
    pool: Pool
    training: TargetTable
    held: TargetTable

    @classmethod
    def of(cls, frame: pd.DataFrame, target: Target, fraction: float) -> Self:
        """Split a table by the holdout rule."""
        rows, pool = TargetTable.of(frame, target), pool_of(frame, target)
        sides = (rows.training(fraction), rows.holdout(fraction))
        training, held = (side.labelled().ordered(pool).supported(pool) for side in sides)
        return cls(frame, fraction, pool, training, held)

    def tables(self) -> tuple[Table, Table]:
        """Return the features of the training rows, and of the holdout's, in the order of `held`."""
        target = self.held.target
        rows, arch = TargetTable.of(self.frame, target), load_arch(target.arch)
        training = build_table(self.frame, target, self.pool, arch, self.fraction)
        # build_table drops the holdout that it is told of, so the holdout's own rows get none
        return training, build_table(rows.holdout(self.fraction).rows, target, self.pool, arch, 0.0)


def default_kernel(split: Split) -> Floats:
    """Prefer the pool's default kernel, and where it is unsupported the next one of the pool."""
    return -split.held.kernel(split.pool).astype(np.float64)


def most_frequent_winner(split: Split) -> Floats:
    """Prefer the kernel that is the fastest on most training problems."""
    rows = split.training.rows
    fastest = rows.loc[rows.groupby(list(OPS[split.training.target.op].column_names()))["tflops"].idxmax()]
    wins = fastest["kernel_name"].value_counts()
    return np.asarray(split.held.rows["kernel_name"].map(wins).fillna(0), dtype=np.float64)


def cost_model(split: Split) -> Floats:
    """Rank by tilewise's cost model, calibrated on the training problems, without any tree."""
    training, held = split.tables()
    model = Baselines(training, ModelSettings(), seed=0).of_all().cost_model
    assert model is not None
    rates = held.log_work - model.log_clocks(held.terms, held.kernel)
    return np.asarray(rates[held.is_measured], dtype=np.float64)


def plain_lightgbm(split: Split) -> Floats:
    """Predict log(TFLOPS) from the columns of problem and kernel as they are."""
    columns = [_raw_columns(side, split.pool) for side in (split.training, split.held)]
    texts = {name for name in columns[0] if columns[0][name].dtype.kind not in "iufb"}
    known = {name: pd.CategoricalDtype(sorted(set(columns[0][name]))) for name in texts}
    training, held = (side.astype(known) for side in columns)
    data = lgb.Dataset(training, label=np.log(split.training.tflops))
    return np.asarray(lgb.train(PLAIN, data, PLAIN_TREES).predict(held, num_threads=1), dtype=np.float64)


def _raw_columns(side: TargetTable, pool: Pool) -> pd.DataFrame:
    return pd.DataFrame({**side.problem_columns(), **side.kernel_columns(pool)})


METHODS: Mapping[str, Callable[[Split], Floats]] = {
    "default kernel": default_kernel,
    "most frequent winner": most_frequent_winner,
    "cost model alone": cost_model,
    "plain LightGBM": plain_lightgbm,
}


def selections(split: Split, score: Floats) -> pd.DataFrame:
    """Return the best candidate of each holdout problem as a file of predictions: a row per problem."""
    rows = split.held.rows.assign(score=score)
    best = rows.groupby(split.held.problem)["score"].idxmax()
    return rows.loc[best, [*OPS[split.held.target.op].column_names(), "kernel_name"]].reset_index(drop=True)
