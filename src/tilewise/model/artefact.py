"""A trained model as a folder of plain files: written at once, verified at load, used by the dispatcher and evaluation.

Nothing in it is code. Its `selftest.json` is what a reader checks the rest against (:mod:`tilewise.model.selftest`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewise.arch import HardwareProfile
from tilewise.checks import is_whole
from tilewise.errors import ArtefactError, KernelError, UsageError
from tilewise.features import FeatureTable, feature_table
from tilewise.features.estimate import LaunchEstimate
from tilewise.files import replace_folder
from tilewise.kernels.pool import Pool, dump_json
from tilewise.model import compiled
from tilewise.model.files import (
    ESTIMATE,
    EXTRAS,
    IMPORTANCES,
    MANIFEST,
    METRICS,
    POOL,
    SCALE,
    SCORES,
    SELFTEST,
    SPEC,
    TRUST,
    pack_json,
    pack_text,
    read_files,
    read_json,
    unpack_text,
    write_files,
)
from tilewise.model.labels import ESTIMATED, EXTRA_LABELS, LABELS
from tilewise.model.selftest import selftest, verify_selftest
from tilewise.model.trained import TrainedModel
from tilewise.model.trust import Calibration
from tilewise.ops import OPS, Problem, Target


@dataclass(frozen=True)
class ArtefactParts:
    """All that makes a model folder.

    Attributes:
        target: what the model is for.
        pool: the kernels it may choose from.
        arch: the hardware profile that its features were computed with.
        features: the columns of the score booster, in order.
        label: one of :data:`LABELS`.
        booster_text: LightGBM text model of the scores.
        scale_text: for ``relative``: text model over the features of role "problem" (those of `features`, in order)
            that predicts log(best TFLOPS of the problem).
        estimate: for labels of :data:`ESTIMATED`: what scores of the booster are added to.
        cv_metrics: figures of the cross-validation, plain data.
        feature_importances: importance of each feature, plain data.
        manifest: where the model comes from: data hash, revision, parameters, versions. No times: equal trainings
            make equal files.
        selftest_problems: a few problems of the training data.
        extra_boosters: text models of :data:`EXTRA_LABELS` over `features`.
        trust: how far selections can be trusted; None where nothing out of fold tells.
        shortlist: trees rank so many kernels, those that the estimate puts first (:mod:`tilewise.model.shortlist`); 0:
            all of them, also where there is no estimate.

    Raises:
        ArtefactError: the parts do not belong together.
    """

    target: Target
    pool: Pool
    arch: HardwareProfile
    features: FeatureTable
    label: str
    booster_text: str
    scale_text: str | None
    cv_metrics: Mapping[str, Any]
    feature_importances: Mapping[str, Any]
    manifest: Mapping[str, Any]
    selftest_problems: Sequence[Problem]
    extra_boosters: Mapping[str, str] = field(default_factory=dict)
    estimate: LaunchEstimate | None = None
    trust: Calibration | None = None
    shortlist: int = 0

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ArtefactError(f"label must be one of {', '.join(LABELS)}, got {self.label!r}")
        if (self.label == "relative") != (self.scale_text is not None):
            raise ArtefactError("scale_text belongs to label 'relative', and only there")
        if (self.label in ESTIMATED) != (self.estimate is not None):
            raise ArtefactError(f"an estimate belongs to the labels {', '.join(ESTIMATED)}, and only there")
        if self.shortlist and self.estimate is None:
            raise ArtefactError("a shortlist is an estimate's, and there is none")
        unknown = set(self.extra_boosters) - set(EXTRA_LABELS)
        if unknown:
            raise ArtefactError(f"extra boosters may be {', '.join(EXTRA_LABELS)}, got {', '.join(sorted(unknown))}")
        _check_target(self.target, self.pool, self.arch, self.features)


def write_artefact(folder: str | Path, parts: ArtefactParts) -> None:
    """Write a model folder; equal parts give equal bytes. What stood there is replaced at once, or left as it was.

    Raises:
        ArtefactError: the model cannot be read back, e.g. its boosters have other features than `parts.features`.
        OSError: the folder cannot be written.
    """
    files: dict[str, bytes] = {
        SCORES: pack_text(parts.booster_text),
        SPEC: pack_json(_spec(parts)),
        POOL: dump_json(parts.pool).encode(),
        MANIFEST: pack_json(parts.manifest),
        METRICS: pack_json(parts.cv_metrics),
        IMPORTANCES: pack_json(parts.feature_importances),
    }
    if parts.scale_text is not None:
        files[SCALE] = pack_text(parts.scale_text)
    if parts.estimate is not None:
        files[ESTIMATE] = pack_text(json.dumps(parts.estimate.to_dict(parts.features)))
    if parts.trust is not None:
        files[TRUST] = pack_text(json.dumps(parts.trust.to_dict()))
    files |= {EXTRAS[label]: pack_text(text) for label, text in parts.extra_boosters.items()}
    model = _build(files, "the new model")
    model.read_all()
    files[SELFTEST] = pack_json(selftest(model, files, parts.selftest_problems))
    with replace_folder(folder) as fresh:
        write_files(fresh, files)


def load_artefact(folder: str | Path, *, verify: bool = True, keep: Path | None = None) -> TrainedModel:
    """Read a model folder. Files that are no part of a model are ignored.

    Args:
        folder: as :func:`write_artefact` left it, or a copy.
        verify: also check every file's digest and repeat the self-test.
        keep: a folder where the compiled form stays for the next process (:mod:`tilewise.model.compiled`), which then
            loads the same files in a fraction of the time. Nothing depends on it: what is not sound there is made anew.

    Raises:
        ArtefactError: a file is missing, damaged or from another model, the features are not those of this library,
            or the self-test gives other results; the message names the file.
    """
    folder = Path(folder)
    files = read_files(folder)
    model = _build(files, str(folder))
    kept = compiled.path(keep, model.content_hash) if keep else None
    if kept and compiled.restore(model, kept):
        with suppress(ArtefactError):  # whatever is wrong, the files have the last word
            verify_selftest(model)
            return model
        model = _build(files, str(folder))
    model.read_all()
    made = model.compile() if kept else None
    if made:
        model.rank_by(made[1])
    if verify:
        verify_selftest(model)
    if kept and made:
        compiled.keep(made[0], kept)
    return model


def read_parts(folder: str | Path) -> ArtefactParts:
    """:func:`parts_of` the model in a folder.

    Raises:
        ArtefactError: as for :func:`load_artefact`.
    """
    return parts_of(load_artefact(folder))


def parts_of(model: TrainedModel) -> ArtefactParts:
    """The parts that a verified model was written from, to continue it."""
    files, told = model.files, read_json(model.files, SELFTEST, model.where)
    return ArtefactParts(
        target=model.target,
        pool=model.pool,
        arch=model.arch,
        features=model.features,
        label=model.label,
        booster_text=unpack_text(files[SCORES]),
        scale_text=unpack_text(files[SCALE]) if SCALE in files else None,
        cv_metrics=model.cv_metrics,
        feature_importances=model.feature_importances,
        manifest=model.manifest,
        selftest_problems=[OPS[model.target.op].from_dict(p["problem"]) for p in told["problems"]],
        extra_boosters={label: unpack_text(files[name]) for label, name in EXTRAS.items() if name in files},
        estimate=model.estimate,
        trust=model.calibration,
        shortlist=model.shortlist,
    )


def _build(files: Mapping[str, bytes], where: str) -> TrainedModel:
    spec, pool = read_json(files, SPEC, where), _pool(files, where)
    try:
        target = Target(*(spec["target"][key] for key in ("op", "variant", "dtype", "arch")))
        arch = HardwareProfile.from_dict(spec["arch"])
        features = feature_table(target.op).select(f["name"] for f in spec["features"])
        label, shortlist, schema = spec["label"], spec["shortlist"], spec["schema_hash"]
        _check_target(target, pool, arch, features)
    except UsageError as e:
        raise ArtefactError(f"{where}: {SPEC}: {e}") from e
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise ArtefactError(f"{where}: {SPEC} is none of this library: {e!r}") from e
    if schema != features.schema_hash:
        raise ArtefactError(
            f"{where}: {SPEC}: the model's features mean something else in this library (schema hash {schema!r}, here "
            f"{features.schema_hash!r}); use the library that trained it, or train again"
        )
    if label not in LABELS or (label == "relative") != (SCALE in files):
        raise ArtefactError(f"{where}: {SPEC}: label {label!r} and the presence of {SCALE} do not fit")
    if (label in ESTIMATED) != (ESTIMATE in files):
        raise ArtefactError(f"{where}: {SPEC}: label {label!r} and the presence of {ESTIMATE} do not fit")
    if not is_whole(shortlist) or shortlist < 0 or (shortlist and label not in ESTIMATED):
        raise ArtefactError(f"{where}: {SPEC}: label {label!r} and a shortlist of {shortlist!r} kernels do not fit")
    return TrainedModel(target, pool, arch, features, label, shortlist, files, where)


def _pool(files: Mapping[str, bytes], where: str) -> Pool:
    try:
        return Pool.from_dict(read_json(files, POOL, where))
    except KernelError as e:
        raise ArtefactError(f"{where}: {POOL}: {e}") from e


def _check_target(target: Target, pool: Pool, arch: HardwareProfile, features: FeatureTable) -> None:
    if (pool.op, pool.variant, pool.dtype) != (target.op, target.variant, target.dtype):
        raise ArtefactError(f"the pool is of {pool.op} {pool.variant} {pool.dtype}, the model of {target.name}")
    if arch.name != target.arch:
        raise ArtefactError(f"the hardware profile is of {arch.name}, the model of {target.name}")
    if features.op != target.op:
        raise ArtefactError(f"the features are of {features.op}, the model of {target.name}")


def _spec(parts: ArtefactParts) -> dict[str, Any]:
    target = parts.target
    return {
        "target": {"op": target.op, "variant": target.variant, "dtype": target.dtype, "arch": target.arch},
        "label": parts.label,
        "shortlist": parts.shortlist,
        "schema_hash": parts.features.schema_hash,
        "arch": parts.arch.to_dict(),
        "features": [
            {"name": f.name, "unit": f.unit, "role": f.role, "meaning": f.meaning} for f in parts.features.features
        ],
    }
