"""Fingerprints of a target: digests of the results that the pipeline's sources compute.

A DVC stage depends on the bytes of its source files, so an edited comment makes it stale. `make same` repeats the
stages that take seconds and compares their outputs. Training takes minutes, so fingerprints stand in for it: the
features of its rows, and a small fit with the same functions on a tenth of the problems and with few trees.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from tilewise.arch import load_arch
from tilewise.data import group_keys, problems_of
from tilewise.dispatch.measuring import kernels_hash
from tilewise.model import load_artefact, write_artefact
from tilewise.train import build_table, pool_of, settings_from_config, train

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

    from tilewise.ops import Target
    from tilewise.train import TrainSettings

ONE_IN = 10  # problems of the sample
N_TREES = 8
N_TRIALS = 2
# Revision and library versions of a training: they do not depend on the results of the sources.
PROVENANCE = ("git_revision", "libraries")


def fingerprints(cfg: DictConfig, frame: pd.DataFrame, target: Target, model_dir: Path) -> dict[str, str]:
    """Compute the fingerprints of a target.

    Args:
        cfg: the configuration of the training.
        frame: the prepared measurements.
        target: the target.
        model_dir: the folder of the trained model.

    Returns:
        SHA-256 digests by name: `features` and `fit` of the sample, `selections` of the model for all problems of
        `frame`, and `kernels`, the code of the measured kernels.

    Raises:
        ArtefactError: the model cannot be loaded.
        DataError: the table cannot be used.
    """
    sample = _one_in(ONE_IN, frame, target)
    settings = _small(settings_from_config(_plain(cfg)))
    return {
        "features": _features(sample, target, settings),
        "fit": _fit(sample, target, settings),
        "selections": _selections(frame, target, model_dir),
        "kernels": kernels_hash(),
    }


def _features(sample: pd.DataFrame, target: Target, settings: TrainSettings) -> str:
    """Digest names and values of the features, and the labels, of all rows that the sample trains on."""
    table = build_table(sample, target, pool_of(sample, target), load_arch(target.arch), settings.holdout_fraction)
    names = json.dumps([*table.features.names]).encode()
    arrays = (table.matrix, table.problem_matrix, table.log_work, table.tflops, table.spread)
    return _digest([names, *(np.ascontiguousarray(values).tobytes() for values in arrays)])


def _fit(sample: pd.DataFrame, target: Target, settings: TrainSettings) -> str:
    """Digest the files of a small model that is tuned, cross-validated and trained on the sample."""
    result = train(sample, target, pool_of(sample, target), load_arch(target.arch), settings)
    with tempfile.TemporaryDirectory() as folder:
        write_artefact(folder, result.parts)
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    manifest = json.loads(files.pop("train_manifest.json"))
    selftest = json.loads(files.pop("selftest.json"))
    del selftest["files"]["train_manifest.json"]  # a hash that depends on the provenance
    facts = {key: value for key, value in manifest.items() if key not in PROVENANCE}
    texts = [json.dumps(values, sort_keys=True).encode() for values in (facts, selftest)]
    return _digest([*texts, *(name.encode() + files[name] for name in sorted(files))])


def _selections(frame: pd.DataFrame, target: Target, model_dir: Path) -> str:
    """Digest the kernel that the model selects for every recorded problem, and the TFLOPS that it predicts."""
    model = load_artefact(model_dir)
    lines = []
    for problem in dict.fromkeys(problems_of(frame, target)):
        kernels, tflops = model.best(problem, 1)
        picked = f"{model.pool.names[kernels[0]]} {tflops[0]!r}" if len(kernels) else "unsupported"
        dimensions = ", ".join(f"{name}={value!r}" for name, value in problem.stated().items())
        lines.append(f"{type(problem).__name__}({dimensions}) {picked}".encode())
    return _digest(lines)


def _small(settings: TrainSettings) -> TrainSettings:
    """Return the settings of a training that takes seconds and exercises every step of the real one."""
    return dataclasses.replace(
        settings,
        n_splits=2,
        threads=1,
        model=dataclasses.replace(settings.model, n_estimators=N_TREES, num_leaves=15),
        tune=dataclasses.replace(settings.tune, n_trials=N_TRIALS, n_estimators=N_TREES),
    )


def _one_in(n: int, frame: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return the rows of one problem in `n`, by a hash of the group key."""
    distinct, index = np.unique(group_keys(target.op, frame), axis=0, return_inverse=True)
    chosen = np.array([int(hashlib.sha256(key.tobytes()).hexdigest(), 16) % n == 0 for key in distinct])
    return frame[chosen[index]].reset_index(drop=True)


def _plain(cfg: DictConfig) -> Mapping[str, object]:
    from omegaconf import OmegaConf

    return cast("Mapping[str, object]", OmegaConf.to_container(cfg, resolve=True))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
