"""A small model in production's configuration, fitted in a second on synthetic measurements.

As in production, the label is ``lambdarank``: trees correct a calibrated cost model and rank a shortlist of kernels.
Confidence is not calibrated, because that takes a cross-validation; :mod:`calibrations` adds one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from synthetic import CONV, kernels, measurements
from tilewise.arch import load_arch
from tilewise.data._backends import joined
from tilewise.kernels import KernelBase, Pool, backend
from tilewise.kernels.vendor import VendorCall
from tilewise.model import ArtefactParts, Calibration, TrainedModel, write_artefact
from tilewise.ops import OPS, Target
from tilewise.train import ModelSettings, TrainingData, TrainSettings, build_table, make_labels
from tilewise.train._boosting import model_text

PROBLEMS, KERNELS, SHORTLIST = 40, 24, 12
VENDOR = VendorCall("cudnn")
SETTINGS = ModelSettings(shortlist=SHORTLIST, num_leaves=31)


@cache
def table(target: str = CONV, failures: float = 0.002) -> pd.DataFrame:
    """Return the measurements that the models of :func:`write_model` learn from; do not change it."""
    return measurements(target, PROBLEMS, KERNELS, failures=failures)


def write_model(
    folder: Path,
    *,
    trees: int = 60,
    sign: float = 1.0,
    target: str = CONV,
    note: str = "",
    vendor: bool = False,
    calibration: Calibration | None = None,
) -> Path:
    """Write a model folder, and return it.

    Args:
        folder: folder to write.
        trees: number of trees; more are better.
        sign: -1 learns from mirrored measurements, and so ranks slow kernels first.
        target: name of the target.
        note: added to the manifest, so that models of equal skill differ in content.
        vendor: add the vendor's convolution to the pool and the measurements.
        calibration: of its confidence.
    """
    write_artefact(folder, dataclasses.replace(_parts(target, trees, sign, note, vendor), calibration=calibration))
    return folder


@cache
def _parts(name: str, trees: int, sign: float, note: str, vendor: bool) -> ArtefactParts:
    target = Target.parse(name)
    arch, pool = load_arch(target.arch), Pool(target.op, target.variant, target.dtype, kernels(target, KERNELS))
    frame = table(name) if sign > 0 else _mirrored(table(name))
    if vendor:
        frame, pool = with_vendor(frame), dataclasses.replace(pool, kernels=(*pool.kernels, VENDOR))
    settings = dataclasses.replace(SETTINGS, n_estimators=trees)
    data = TrainingData.prepare(build_table(frame, target, pool, arch, 0.0), TrainSettings(settings))
    baseline, everything = data.baselines.of_all(), np.arange(len(data.table.problems))
    labels = make_labels(data.table, settings, baseline.scores)
    booster = data.bins.fit(settings, labels, data.fit, data.baselines.training_rows(everything))
    problem = frame[frame["is_valid"]][list(OPS[target.op].column_names())].head(1).to_dict("records")
    return ArtefactParts(
        target=target,
        pool=pool,
        arch=arch,
        features=data.table.features,
        label=settings.label,
        booster_text=model_text(booster),
        scale_text=None,
        cost_model=baseline.cost_model,
        shortlist=settings.shortlist,
        cv_metrics={"mean_efficiency": 0.9, "p10_efficiency": 0.8},
        feature_importances={"tile_m": 1.0},
        manifest={"data_hash": "d" * 64, "git_revision": "unknown", "parameters": {"n_estimators": trees}}
        | {"holdout_fraction": 0.18, "note": note},
        selftest_problems=[OPS[target.op].from_dict({str(n): v for n, v in row.items()}) for row in problem],
    )


def with_vendor(frame: pd.DataFrame) -> pd.DataFrame:
    """Return measurements with a row of the vendor's call per problem: faster than all kernels if C divides by 32."""
    valid = frame[frame["is_valid"]]
    fastest = valid.loc[valid.groupby(list(OPS["grouped_conv"].column_names()), dropna=False)["latency_ms"].idxmin()]
    factor = np.where(fastest["C"] % 32 == 0, 0.8, 1.3)
    rows = fastest.drop(columns=list(backend("triton").column_kinds())).assign(
        **{name: fastest[name] / factor for name in ("tflops", "bandwidth_gb_s")},
        latency_ms=fastest["latency_ms"] * factor,
        kernel_name=VENDOR.name("grouped_conv", "forward", "bf16"),
        backend="vendor",
        algorithm=VENDOR.algorithm,
    )
    return joined([frame, rows]).reset_index(drop=True)


def _mirrored(frame: pd.DataFrame) -> pd.DataFrame:
    """Return measurements in which each problem's fastest kernel has the slowest one's rate, and vice versa."""
    of_problem = frame.groupby(list(OPS[str(frame["op"].iloc[0])].column_names()), dropna=False)["tflops"]
    return frame.assign(tflops=of_problem.transform("max") * of_problem.transform("min") / frame["tflops"])


def with_pool(model: TrainedModel, pool: Sequence[KernelBase]) -> TrainedModel:
    """Return `model` with some of its kernels, and with their part of the cost model."""
    whole, cost_model = model.pool, model.cost_model
    assert cost_model is not None
    rows = [*(whole.kernels.index(kernel) for kernel in pool), len(whole)]  # the last one serves unknown kernels
    smaller = Pool(whole.op, whole.variant, whole.dtype, tuple(pool))
    return altered(model, pool=smaller, cost_model=dataclasses.replace(cost_model, weights=cost_model.weights[rows]))


def altered(model: TrainedModel, **change: Any) -> TrainedModel:
    """Return `model` with other fields, or other parts than its files have."""
    fields = {f.name for f in dataclasses.fields(model)}
    new = dataclasses.replace(model, **{name: value for name, value in change.items() if name in fields})
    kept = {n: part for n, part in vars(model).items() if n not in (*fields, "ranker") and n[0] != "_"}
    vars(new).update(kept | {name: part for name, part in change.items() if name not in fields})
    return new
