"""A trained model as a folder of plain files, written atomically and verified on load.

The files hold data only, no code. `selftest.json` lets a reader check the other files
(:mod:`tilewise.model._selftest`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tilewise.arch import HardwareProfile
from tilewise.checks import is_whole
from tilewise.errors import ArtefactError, ConfigError, KernelError, UsageError
from tilewise.features import CostModel, FeatureTable, feature_table, feature_table_of
from tilewise.files import replace_folder
from tilewise.kernels import Pool, pool_json
from tilewise.model import _compiled_model as compiled_model
from tilewise.model._artefact_files import (
    CALIBRATION,
    COST_MODEL,
    DEFINITION,
    EXTRAS,
    IMPORTANCES,
    MANIFEST,
    METRICS,
    POOL,
    SCALE,
    SCORES,
    SELFTEST,
    SPEC,
    JsonObject,
    pack_definition,
    pack_json,
    pack_text,
    read_definition_file,
    read_files,
    read_json,
    unpack_text,
    write_files,
)
from tilewise.model._confidence import Calibration
from tilewise.model._label_names import COST_MODEL_LABELS, EXTRA_LABELS, LABELS, SCALED_LABELS
from tilewise.model._selftest import selftest, verify_digests, verify_selftest
from tilewise.model._trained_model import TrainedModel
from tilewise.ops import OPS, OpDefinition, Problem, Target, adopt


@dataclass(frozen=True)
class ArtefactParts:
    """All contents of a model folder.

    Attributes:
        target: op, variant, dtype and arch that the model selects for.
        pool: the kernels to choose from.
        arch: the hardware profile that its features were computed with.
        features: the columns of the score booster, in order.
        label: one of :data:`LABELS`.
        booster_text: LightGBM text model of the scores.
        scale_text: for labels of :data:`SCALED_LABELS`: text model over the features of role "problem" (those of
            `features`, in order) that predicts what a problem's scores lack to be log(TFLOPS). ``relative`` needs it.
        cv_metrics: metrics of the cross-validation, plain data.
        feature_importances: importance of each feature, plain data.
        manifest: origin of the model: data hash, revision, parameters, versions. Without times, so that equal
            trainings give equal files.
        selftest_problems: a few problems of the training data.
        extra_boosters: text models of :data:`EXTRA_LABELS` over `features`.
        cost_model: for labels of :data:`COST_MODEL_LABELS`: the cost model that the booster's scores are added to.
        calibration: calibration of the confidence; None without out-of-fold rankings.
        shortlist: the number of kernels that trees rank, the best by the cost model; 0: all kernels, also without a
            cost model.

    Raises:
        ArtefactError: the parts are inconsistent.
    """

    target: Target
    pool: Pool
    arch: HardwareProfile
    features: FeatureTable
    label: str
    booster_text: str
    scale_text: str | None
    cv_metrics: JsonObject
    feature_importances: JsonObject
    manifest: JsonObject
    selftest_problems: Sequence[Problem]
    extra_boosters: Mapping[str, str] = field(default_factory=dict)
    cost_model: CostModel | None = None
    calibration: Calibration | None = None
    shortlist: int = 0

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ArtefactError(f"label must be one of {', '.join(LABELS)}, got {self.label!r}")
        if not _scale_fits(self.label, self.scale_text is not None):
            raise ArtefactError(
                f"label 'relative' needs scale_text, only {', '.join(SCALED_LABELS)} may have it, got {self.label!r}"
            )
        if (self.label in COST_MODEL_LABELS) != (self.cost_model is not None):
            raise ArtefactError(
                f"labels {', '.join(COST_MODEL_LABELS)} need a cost model, other labels must not have it"
            )
        if self.shortlist and self.cost_model is None:
            raise ArtefactError("a shortlist needs a cost model; set shortlist=0")
        unknown = set(self.extra_boosters) - set(EXTRA_LABELS)
        if unknown:
            raise ArtefactError(f"extra boosters may be {', '.join(EXTRA_LABELS)}, got {', '.join(sorted(unknown))}")
        _check_target(self.target, self.pool, self.arch, self.features)


def write_artefact(folder: str | Path, parts: ArtefactParts) -> None:
    """Write a model folder; equal parts give equal bytes. The previous folder is replaced atomically or kept.

    Raises:
        ArtefactError: the model cannot be read back, e.g. its boosters have other features than `parts.features`.
        OSError: the folder cannot be written.
    """
    files: dict[str, bytes] = {
        SCORES: pack_text(parts.booster_text),
        SPEC: pack_json(_spec(parts)),
        POOL: pool_json(parts.pool).encode(),
        MANIFEST: pack_json(parts.manifest),
        METRICS: pack_json(parts.cv_metrics),
        IMPORTANCES: pack_json(parts.feature_importances),
    }
    if parts.features.definition is not None:
        files[DEFINITION] = pack_definition(parts.features.definition)
    if parts.scale_text is not None:
        files[SCALE] = pack_text(parts.scale_text)
    if parts.cost_model is not None:
        files[COST_MODEL] = pack_text(json.dumps(parts.cost_model.to_dict(parts.features)))
    if parts.calibration is not None:
        files[CALIBRATION] = pack_text(json.dumps(parts.calibration.to_dict()))
    files |= {EXTRAS[label]: pack_text(text) for label, text in parts.extra_boosters.items()}
    model = _build(files, "the new model")
    model.read_all()
    files[SELFTEST] = pack_json(selftest(model, files, parts.selftest_problems))
    with replace_folder(folder) as fresh:
        write_files(fresh, files)


def load_artefact(folder: str | Path, *, verify: bool = True, keep: Path | None = None) -> TrainedModel:
    """Read a model folder. Files that do not belong to a model are ignored.

    Args:
        folder: a folder that :func:`write_artefact` wrote, or a copy.
        verify: also check every file's digest before parsing it, and repeat the self-test.
        keep: a cache folder for the compiled form, with which the next process loads the same files in a fraction of
            the time. Invalid entries are replaced.

    Raises:
        ArtefactError: a file is missing, damaged or from another model, the features differ from this library's, or
            the self-test gives other results; the message names the file.
    """
    folder = Path(folder)
    files = read_files(folder)
    if verify:
        verify_digests(files, str(folder))
    model = _build(files, str(folder))
    entry = compiled_model.path(keep, model.content_hash) if keep else None
    if entry and compiled_model.restore(model, entry):
        with suppress(ArtefactError):  # the entry may be at fault: the files decide below
            verify_selftest(model)
            return model
        model = _build(files, str(folder))
    model.read_all()
    compiled = model.compile() if entry else None
    if compiled:
        model.rank_by(compiled[1])
    if verify:
        verify_selftest(model)
    if entry and compiled:
        compiled_model.keep(compiled[0], entry)
    return model


def read_parts(folder: str | Path) -> ArtefactParts:
    """Read a model folder and return the parts that it was written from, for a warm start.

    Raises:
        ArtefactError: as for :func:`load_artefact`.
    """
    return parts_of(load_artefact(folder))


def parts_of(model: TrainedModel) -> ArtefactParts:
    """Return the parts that a verified model was written from, for a warm start."""
    files, recorded = model.files, read_json(model.files, SELFTEST, model.where)
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
        selftest_problems=[OPS[model.target.op].from_dict(p["problem"]) for p in recorded["problems"]],
        extra_boosters={label: unpack_text(files[name]) for label, name in EXTRAS.items() if name in files},
        cost_model=model.cost_model,
        calibration=model.calibration,
        shortlist=model.shortlist,
    )


def _build(files: Mapping[str, bytes], where: str) -> TrainedModel:
    """Return the model in `files`, with the description and the pool checked and everything else unread."""
    definition = _adopted(files, where)
    spec, pool = read_json(files, SPEC, where), _pool(files, where)
    try:
        target = Target(*(spec["target"][key] for key in ("op", "variant", "dtype", "arch")))
        arch = HardwareProfile.from_dict(spec["arch"])
        every = feature_table(target.op) if definition is None else feature_table_of(definition)
        features = every.select(f["name"] for f in spec["features"])
        label, shortlist, schema = spec["label"], spec["shortlist"], spec["schema_hash"]
        _check_target(target, pool, arch, features)
    except UsageError as e:
        raise ArtefactError(f"{where}: {SPEC}: {e}") from e
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise ArtefactError(f"{where}: {SPEC} was not written by tilewise: {e!r}") from e
    if schema != features.schema_hash:
        raise ArtefactError(
            f"{where}: {SPEC}: the model's features are defined differently in this library (schema hash {schema!r}, "
            f"here {features.schema_hash!r}); use the library that trained it, or train again"
        )
    if label not in LABELS or not _scale_fits(label, SCALE in files):
        raise ArtefactError(
            f"{where}: {SPEC}: label {label!r} is unknown, or {SCALE} is missing or superfluous for it; fetch it again"
        )
    if (label in COST_MODEL_LABELS) != (COST_MODEL in files):
        raise ArtefactError(
            f"{where}: {SPEC}: {COST_MODEL} is missing or superfluous for label {label!r}; fetch the model again"
        )
    if not is_whole(shortlist) or shortlist < 0 or (shortlist and label not in COST_MODEL_LABELS):
        raise ArtefactError(f"{where}: {SPEC}: a shortlist of {shortlist!r} kernels is invalid for label {label!r}")
    return TrainedModel(target, pool, arch, features, label, shortlist, files, where)


def _adopted(files: Mapping[str, bytes], where: str) -> OpDefinition | None:
    """Return the definition that came with a model, None without one; the op is known from then on.

    Raises:
        ArtefactError: the file is damaged, or the op is known with other columns.
    """
    definition = read_definition_file(files, where)
    try:
        if definition is not None:
            adopt(definition)
    except ConfigError as e:
        raise ArtefactError(f"{where}: {DEFINITION}: a model of another definition: {e}") from e
    return definition


def _scale_fits(label: str, has_scale: bool) -> bool:
    """Return whether a model of this label may have a scale, or lack one: models written earlier have no scale."""
    return label in SCALED_LABELS if has_scale else label != "relative"


def _pool(files: Mapping[str, bytes], where: str) -> Pool:
    values = read_json(files, POOL, where)
    try:
        pool = Pool.from_dict(values)
    except (KernelError, ValueError, OverflowError) as e:
        raise ArtefactError(f"{where}: {POOL}: {e}") from e
    if values.get("default", pool.names[0]) != pool.names[0]:
        raise ArtefactError(
            f"{where}: {POOL}: default must be the first kernel, {pool.names[0]}, got {values['default']!r:.100}; "
            "fetch the model again"
        )
    for i, (stated, kernel) in enumerate(zip(values["kernels"], pool.kernels, strict=True)):
        for name, value in kernel.to_dict().items():  # reading converts: "64" and true would become numbers
            if type(stated.get(name, value)) is not type(value):
                raise ArtefactError(
                    f"{where}: {POOL}: kernels[{i}].{name} must be of type {type(value).__name__}, "
                    f"got {stated[name]!r:.60}; fetch the model again, or train it again"
                )
    return pool


def _check_target(target: Target, pool: Pool, arch: HardwareProfile, features: FeatureTable) -> None:
    if (pool.op, pool.variant, pool.dtype) != (target.op, target.variant, target.dtype):
        raise ArtefactError(f"the pool is of {pool.op} {pool.variant} {pool.dtype}, but the model is of {target.name}")
    if arch.name != target.arch:
        raise ArtefactError(f"the hardware profile is of {arch.name}, but the model is of {target.name}")
    if features.op != target.op:
        raise ArtefactError(f"the features are of {features.op}, but the model is of {target.name}")


def _spec(parts: ArtefactParts) -> JsonObject:
    target = parts.target
    return {
        "target": {"op": target.op, "variant": target.variant, "dtype": target.dtype, "arch": target.arch},
        "label": parts.label,
        "shortlist": parts.shortlist,
        "schema_hash": parts.features.schema_hash,
        "arch": parts.arch.to_dict(with_later=parts.features.across_archs),
        "features": [
            {"name": f.name, "unit": f.unit, "role": f.role, "meaning": f.meaning} for f in parts.features.features
        ],
    }
