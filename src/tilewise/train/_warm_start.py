"""Continuing a model: additional trees on top of an existing model, learnt from new measurements.

The base model stays as it is, its cost model included; the new trees learn its errors. So few trees suffice, and they
change next to nothing where the new measurements agree with the base model.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import lightgbm as lgb
import numpy as np

from tilewise.errors import ArtefactError, ConfigError
from tilewise.model import ArtefactParts, TrainedModel, load_artefact, parts_of
from tilewise.ops import Target
from tilewise.train._dataset import Floats, Table
from tilewise.train._settings import TrainSettings

# Factor of the learning rate: new measurements are few, and the base model is right about most problems.
LEARNING_RATE_FACTOR = 0.5


@dataclass(frozen=True)
class BaseModel:
    """The model that a training continues: loaded, and as parts of its folder."""

    model: TrainedModel
    parts: ArtefactParts

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read and verify a model's folder; a model with features that this library lacks is refused.

        Raises:
            ArtefactError: the folder holds no valid model; the message names the file.
        """
        model = load_artefact(folder)
        return cls(model, parts_of(model))

    def check(self, target: Target, settings: TrainSettings) -> None:
        """Check that a training with these settings may continue the model.

        Raises:
            ConfigError: target or label differ, an extra label is missing, or the holdout contains problems that the
                base model was trained on.
        """
        held_out = float(self.model.manifest.get("holdout_fraction", 0.0))
        for name, ours, wanted in (
            ("target", target.name, self.model.target.name),
            ("model.label", settings.model.label, self.model.label),
        ):
            if ours != wanted:
                raise ConfigError(f"{name} must be that of the continued model, {wanted}, got {ours}")
        if settings.teachers:
            raise ConfigError(
                "a continued model has its own features and learns from its target alone; leave out teachers"
            )
        missing = [name for name in settings.model.extra_labels if name not in self.parts.extra_boosters]
        if missing:
            raise ConfigError(
                f"model.extra_labels: the continued model has no trees for {', '.join(missing)}; leave them out, or "
                "train a new model"
            )
        if settings.holdout_fraction > held_out:
            raise ConfigError(
                f"holdout.fraction must be at most {held_out}, because the continued model was trained on the rest, "
                f"got {settings.holdout_fraction}"
            )

    def settings(self, settings: TrainSettings) -> TrainSettings:
        """Return settings with `warm_estimators` trees, half the learning rate, the base's shortlist, and no tuning."""
        model = dataclasses.replace(
            settings.model,
            n_estimators=settings.model.warm_estimators,
            learning_rate=LEARNING_RATE_FACTOR * settings.model.learning_rate,
            extra_labels=(),
            shortlist=self.model.shortlist,
        )
        return dataclasses.replace(settings, model=model, tune=dataclasses.replace(settings.tune, n_trials=0))

    def scores(self, table: Table) -> Floats:
        """Return the base model's scores of a table with its features and its pool, of shape (rows,).

        LightGBM computes the same bits as :class:`~tilewise.model.Ensemble`, in a fraction of the time.
        """
        scores = raw_scores(self.parts.booster_text, table)
        rates = self.log_rates(table)
        return scores if rates is None else rates + scores

    def log_rates(self, table: Table) -> Floats | None:
        """Return log(TFLOPS) by the base's cost model, of shape (rows,); None where it has no cost model."""
        if self.model.cost_model is None:
            return None
        rates: Floats = table.log_work - self.model.cost_model.log_clocks(table.terms, table.kernel)
        return rates

    def lineage(self, added: int, data_hash: str) -> list[dict[str, object]]:
        """Return the manifest's ``warm_start``: the continued models and their data, oldest first."""
        step = {"base": self.model.content_hash, "base_data_hash": self.model.manifest.get("data_hash")}
        return [*self.model.manifest.get("warm_start", []), step | {"trees": added, "data_hash": data_hash}]


def raw_scores(text: str, table: Table) -> Floats:
    """Return the sums of a text model's trees over the features of a table, of shape (rows,)."""
    booster = lgb.Booster(model_str=text)
    parts = [booster.predict(matrix, raw_score=True) for matrix in table.feature_rows.batches()]
    return np.concatenate(parts, dtype=np.float64)


def append_trees(first: str, second: str) -> str:
    """Return the text model whose scores are the sums of two models' over the same features.

    Raises:
        ArtefactError: a text is not a LightGBM model, or the models have different features.
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
        raise ArtefactError("not a complete LightGBM text model")
    return head, trees, end + tail


def _line(head: str, key: str) -> str | None:
    match = re.search(rf"^{key}=(.*)$", head, flags=re.MULTILINE)
    return match[1] if match else None
