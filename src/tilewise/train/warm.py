"""Continuing a model: more trees on top of one that is there, learnt from new measurements.

What the base knows stays as it is, its estimate included; the new trees learn what it gets wrong. So they are few, and
where the new measurements say nothing new they change next to nothing.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import lightgbm as lgb
import numpy as np

from tilewise.errors import ArtefactError, ConfigError
from tilewise.model.artefact import ArtefactParts, load_artefact, parts_of
from tilewise.model.trained import TrainedModel
from tilewise.ops import Target
from tilewise.train.dataset import Floats, Table
from tilewise.train.settings import TrainSettings

# Of the learning rate: new measurements are few, and the base is right about most of the rest.
CAUTION = 0.5


@dataclass(frozen=True)
class Base:
    """The model that a training continues."""

    model: TrainedModel
    parts: ArtefactParts

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read and verify a model's folder: a model of other features than this library's is refused.

        Raises:
            ArtefactError: the folder holds no sound model; the message names the file.
        """
        model = load_artefact(folder)
        return cls(model, parts_of(model))

    def check(self, target: Target, settings: TrainSettings) -> None:
        """Check that a training may continue it.

        Raises:
            ConfigError: another target or label, or the holdout would hold what the base has seen.
        """
        seen = float(self.model.manifest.get("holdout_fraction", 0.0))
        for name, ours, wanted in (
            ("target", target.name, self.model.target.name),
            ("model.label", settings.model.label, self.model.label),
        ):
            if ours != wanted:
                raise ConfigError(f"{name} must be that of the model that is continued, {wanted}, got {ours}")
        if settings.holdout_fraction > seen:
            raise ConfigError(
                f"holdout.fraction must be at most {seen}, as the model that is continued was trained on the rest, "
                f"got {settings.holdout_fraction}"
            )

    def settings(self, settings: TrainSettings) -> TrainSettings:
        """As many trees as are added, at half the rate, the base's shortlist; no tuning: a base has its parameters."""
        model = dataclasses.replace(
            settings.model,
            n_estimators=settings.model.warm_estimators,
            learning_rate=CAUTION * settings.model.learning_rate,
            extra_labels=(),
            shortlist=self.model.shortlist,
        )
        return dataclasses.replace(settings, model=model, tune=dataclasses.replace(settings.tune, n_trials=0))

    def scores(self, table: Table) -> Floats:
        """(rows,) what the base makes of a table with its features and its pool.

        By LightGBM, which adds the same bits as :class:`~tilewise.model.trees.Ensemble` in a fraction of its time.
        """
        booster = lgb.Booster(model_str=self.parts.booster_text)
        scores = np.asarray(booster.predict(table.matrix, raw_score=True), dtype=np.float64)
        rates = self.log_rates(table)
        return scores if rates is None else rates + scores

    def log_rates(self, table: Table) -> Floats | None:
        """(rows,) log(TFLOPS) by the base's estimate; None where it has none."""
        if self.model.estimate is None:
            return None
        rates: Floats = table.log_work - self.model.estimate.log_clocks(table.terms, table.kernel)
        return rates

    def lineage(self, added: int, data_hash: str) -> list[dict[str, Any]]:
        """The manifest's ``warm_start``: which models were continued, oldest first, and on what."""
        step = {"base": self.model.content_hash, "base_data_hash": self.model.manifest.get("data_hash")}
        return [*self.model.manifest.get("warm_start", []), step | {"trees": added, "data_hash": data_hash}]


def append_trees(first: str, second: str) -> str:
    """The text model whose scores are the sums of two models' over the same features.

    Raises:
        ArtefactError: one is no text model, or they name other features.
    """
    (head, trees, _), (other, more, tail) = _split(first), _split(second)
    if _line(head, "feature_names") != _line(other, "feature_names"):
        raise ArtefactError("models over different features cannot be added")
    renumbered = [re.sub(r"^Tree=\d+", f"Tree={i}", tree) for i, tree in enumerate([*trees, *more])]
    sizes = " ".join(str(len(tree.encode())) for tree in renumbered)
    return re.sub(r"^tree_sizes=.*$", f"tree_sizes={sizes}", other, flags=re.MULTILINE) + "".join(renumbered) + tail


def _split(text: str) -> tuple[str, list[str], str]:
    body, end, tail = text.partition("end of trees")
    head, *trees = re.split(r"^(?=Tree=\d+$)", body, flags=re.MULTILINE)
    if not end or not trees:
        raise ArtefactError("not a whole LightGBM text model")
    return head, trees, end + tail


def _line(head: str, key: str) -> str | None:
    match = re.search(rf"^{key}=(.*)$", head, flags=re.MULTILINE)
    return match[1] if match else None
