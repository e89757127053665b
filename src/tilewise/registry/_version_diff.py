"""The differences between two versions of a target: parameters, data, pool, features, figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewise.model import TrainedModel
from tilewise.registry._version_description import cv_figures

_DATA = ("data_hash", "git_revision", "holdout_fraction", "split_rule", "n_splits", "seed", "n_problems", "n_rows")

Changes = Mapping[str, tuple[object, object]]  # old and new value by name; None: the model has no such value


@dataclass(frozen=True)
class ModelDifference:
    """The differences from model `a` to model `b`. Equal values are left out.

    Attributes:
        parameters, data: Settings and lineage.
        kernels_gone, kernels_new: Names of kernels in only one of the pools.
        features_gone, features_new: Names of features in only one of the models.
        figures: Cross-validated figures.
        libraries: Versions of libraries.
    """

    parameters: Changes
    data: Changes
    kernels_gone: tuple[str, ...]
    kernels_new: tuple[str, ...]
    features_gone: tuple[str, ...]
    features_new: tuple[str, ...]
    figures: Changes
    libraries: Changes

    @property
    def is_empty(self) -> bool:
        """Return whether the models are equal in all of these."""
        return not any(vars(self).values())


def diff_models(a: TrainedModel, b: TrainedModel) -> ModelDifference:
    """Compare two models of one target."""
    ours, theirs = a.manifest, b.manifest
    first = {"label": a.label, **ours.get("parameters", {})}
    second = {"label": b.label, **theirs.get("parameters", {})}
    return ModelDifference(
        parameters=_changed(first, second),
        data=_changed({k: ours.get(k) for k in _DATA}, {k: theirs.get(k) for k in _DATA}),
        kernels_gone=_missing(a.pool.names, b.pool.names),
        kernels_new=_missing(b.pool.names, a.pool.names),
        features_gone=_missing(a.features.names, b.features.names),
        features_new=_missing(b.features.names, a.features.names),
        figures=_changed(cv_figures(a), cv_figures(b)),
        libraries=_changed(ours.get("libraries", {}), theirs.get("libraries", {})),
    )


def _changed(a: Mapping[str, object], b: Mapping[str, object]) -> Changes:
    names = dict.fromkeys([*a, *b])
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _missing(names: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
    present = set(among)
    return tuple(name for name in names if name not in present)
