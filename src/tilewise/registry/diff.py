"""What two versions of a target differ in: parameters, data, pool, features, figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewise.model.trained import TrainedModel
from tilewise.registry.describe import cv_figures

_DATA = ("data_hash", "git_revision", "holdout_fraction", "split_rule", "n_splits", "seed", "n_problems", "n_rows")


@dataclass(frozen=True)
class Difference:
    """What differs from `a` to `b`; equal things are left out.

    Attributes:
        parameters, data: old and new value by name; None where one has no such thing.
        kernels_gone, kernels_new: of the pool, by name.
        features_gone, features_new: by name.
        figures: cross-validated, old and new, by name.
        libraries: versions, old and new, by name.
    """

    parameters: Mapping[str, tuple[Any, Any]]
    data: Mapping[str, tuple[Any, Any]]
    kernels_gone: tuple[str, ...]
    kernels_new: tuple[str, ...]
    features_gone: tuple[str, ...]
    features_new: tuple[str, ...]
    figures: Mapping[str, tuple[Any, Any]]
    libraries: Mapping[str, tuple[Any, Any]]

    @property
    def is_empty(self) -> bool:
        """Whether the two are the same in all of this."""
        return not any(vars(self).values())


def difference(a: TrainedModel, b: TrainedModel) -> Difference:
    """Compare two models of one target."""
    ours, theirs = a.manifest, b.manifest
    first = {"label": a.label, **ours.get("parameters", {})}
    second = {"label": b.label, **theirs.get("parameters", {})}
    return Difference(
        parameters=_changed(first, second),
        data=_changed({k: ours.get(k) for k in _DATA}, {k: theirs.get(k) for k in _DATA}),
        kernels_gone=_missing(a.pool.names, b.pool.names),
        kernels_new=_missing(b.pool.names, a.pool.names),
        features_gone=_missing(a.features.names, b.features.names),
        features_new=_missing(b.features.names, a.features.names),
        figures=_changed(cv_figures(a), cv_figures(b)),
        libraries=_changed(ours.get("libraries", {}), theirs.get("libraries", {})),
    )


def _changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*a, *b])
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _missing(names: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
    there = set(among)
    return tuple(name for name in names if name not in there)
