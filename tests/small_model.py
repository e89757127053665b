"""A small real model in a second: trees over synthetic measurements, for tests of what comes after training."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd

from synthetic import CONV, kernels, measurements
from tilewise.arch import load_arch
from tilewise.features import feature_table
from tilewise.kernels.pool import Pool
from tilewise.model.artefact import ArtefactParts, write_artefact
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, Target

PROBLEMS, KERNELS = 40, 24


@cache
def table(target: str = CONV, failures: float = 0.002) -> pd.DataFrame:
    """The measurements that the models of :func:`write_model` learn from; do not change it."""
    return measurements(target, PROBLEMS, KERNELS, failures=failures)


def write_model(folder: Path, *, trees: int = 60, sign: float = 1.0, target: str = CONV, note: str = "") -> Path:
    """Write a model folder.

    Args:
        folder: where to.
        trees: more are better.
        sign: -1 learns to pick the slowest kernel.
        target: a target's name.
        note: goes into the manifest, so that models of equal skill differ in content.
    """
    write_artefact(folder, _parts(target, trees, sign, note))
    return folder


@cache
def _parts(name: str, trees: int, sign: float, note: str) -> ArtefactParts:
    target = Target.parse(name)
    arch, features = load_arch(target.arch), feature_table(target.op)
    rows = table(name)[lambda f: f["is_valid"]]
    problem_names = list(OPS[target.op].column_names())
    best = np.log(rows.groupby(problem_names)["tflops"].transform("max").to_numpy())
    options: dict[str, Any] = {"variant": target.variant, "dtype": target.dtype, "arch": arch}
    columns = {c: rows[c].to_numpy() for c in rows.columns}
    x = features.matrix(columns, columns, **options)
    of_problem = features.of_role("problem")
    return ArtefactParts(
        target=target,
        pool=Pool(target.op, target.variant, target.dtype, kernels(target, KERNELS)),
        arch=arch,
        features=features,
        label="relative",
        booster_text=_fit(x, sign * (np.log(rows["tflops"].to_numpy()) - best), trees),
        scale_text=_fit(of_problem.matrix(columns, {}, **options), best, trees),
        cv_metrics={"mean_efficiency": 0.9, "p10_efficiency": 0.8},
        feature_importances={"tile_m": 1.0},
        manifest={"data_hash": "d" * 64, "git_revision": "unknown", "parameters": {"n_estimators": trees}}
        | {"holdout_fraction": 0.18, "note": note},
        selftest_problems=[OPS[target.op].from_dict(r) for r in rows[problem_names].head(1).to_dict("records")],
    )


def _fit(x: np.ndarray, y: np.ndarray, trees: int) -> str:
    settings = {"num_threads": 1, "deterministic": True, "verbosity": -1, "num_leaves": 31, "seed": 0}
    return str(lightgbm.train(settings, lightgbm.Dataset(x, y), trees).model_to_string())


def altered(model: TrainedModel, **change: Any) -> TrainedModel:
    """`model` with other fields, or other parts than its files have."""
    fields = {f.name for f in dataclasses.fields(model)}
    new = dataclasses.replace(model, **{name: value for name, value in change.items() if name in fields})
    kept = {n: part for n, part in vars(model).items() if n not in (*fields, "ranker") and n[0] != "_"}
    vars(new).update(kept | {name: part for name, part in change.items() if name not in fields})
    return new
