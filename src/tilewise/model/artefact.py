"""A trained model as a folder of plain files: written at once, verified at load, used by the dispatcher and evaluation.

Nothing in it is code. Its `selftest.json` is what a reader checks the rest against: a digest of every other file, the
hashes of the feature schema and the pool, and a few problems with the features, scores and ranking that the writer saw.
So a model whose features this library would compute differently is refused instead of ranking nonsense.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import ArtefactError, KernelError, UsageError
from tilewise.features import FeatureTable, feature_table
from tilewise.features._base import Inputs
from tilewise.features.estimate import LaunchEstimate, log_work, terms_of
from tilewise.files import replace_folder
from tilewise.kernels.pool import Pool, dump_json
from tilewise.model.ranker import Ranker
from tilewise.model.trees import Ensemble
from tilewise.model.trust import LEVEL, TOLERANCE, Calibration, Trust
from tilewise.ops import OPS, Problem, Target

# residual, regret, lambdarank: scores are log(tflops), the calibrated estimate's plus what the trees add; relative:
# log(tflops / the problem's best); log1p: log(1 + tflops)
LABELS = ("residual", "regret", "lambdarank", "relative", "log1p")
ESTIMATED = ("residual", "regret", "lambdarank")  # their scores are added to a calibrated estimate
EXTRA_LABELS = ("latency", "bandwidth")  # each predicted as a logarithm: of milliseconds, of GB/s

SCORES, SCALE = "model_tflops.lgbm.gz", "model_scale.lgbm.gz"
ESTIMATE, TRUST = "estimate.json.gz", "trust.json.gz"
SPEC, POOL, SELFTEST, MANIFEST = "feature_spec.json", "pool.json", "selftest.json", "train_manifest.json"
METRICS, IMPORTANCES = "cv_metrics_tflops.json", "feature_importances_tflops.json"
EXTRAS = {label: f"model_{label}.lgbm.gz" for label in EXTRA_LABELS}
REQUIRED = (SCORES, SPEC, POOL, SELFTEST, MANIFEST, METRICS, IMPORTANCES)
OPTIONAL = (SCALE, ESTIMATE, TRUST, *EXTRAS.values())

MAX_FILE_BYTES = 128 << 20  # what is read of one file, packed
MAX_MODEL_BYTES = 256 << 20  # what it may unpack to (2,000 trees of 255 leaves take 80 MiB): no gzip bomb fills memory
MIN_TFLOPS = 1e-9  # predictions are positive
FEATURE_TOLERANCE = 1e-9  # logarithms may differ in the last bits between machines
SCORE_TOLERANCE = 1e-6
SELFTEST_ROWS = 4  # kernels of a problem whose features are kept
SELFTEST_RANKS = 10


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

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ArtefactError(f"label must be one of {', '.join(LABELS)}, got {self.label!r}")
        if (self.label == "relative") != (self.scale_text is not None):
            raise ArtefactError("scale_text belongs to label 'relative', and only there")
        if (self.label in ESTIMATED) != (self.estimate is not None):
            raise ArtefactError(f"an estimate belongs to the labels {', '.join(ESTIMATED)}, and only there")
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
        SCORES: _gzip(parts.booster_text),
        SPEC: _json(_spec(parts)),
        POOL: dump_json(parts.pool).encode(),
        MANIFEST: _json(parts.manifest),
        METRICS: _json(parts.cv_metrics),
        IMPORTANCES: _json(parts.feature_importances),
    }
    if parts.scale_text is not None:
        files[SCALE] = _gzip(parts.scale_text)
    if parts.estimate is not None:
        files[ESTIMATE] = _gzip(json.dumps(parts.estimate.to_dict(parts.features)))
    if parts.trust is not None:
        files[TRUST] = _gzip(json.dumps(parts.trust.to_dict()))
    files |= {EXTRAS[label]: _gzip(text) for label, text in parts.extra_boosters.items()}
    model = _build(files, "the new model")
    files[SELFTEST] = _json(_selftest(model, files, parts.selftest_problems))
    with replace_folder(folder) as fresh:
        for name, data in files.items():
            (fresh / name).write_bytes(data)


def load_artefact(folder: str | Path, *, verify: bool = True) -> TrainedModel:
    """Read a model folder. Files that are no part of a model are ignored.

    Args:
        folder: as :func:`write_artefact` left it, or a copy.
        verify: also check every file's digest and repeat the self-test.

    Raises:
        ArtefactError: a file is missing, damaged or from another model, the features are not those of this library,
            or the self-test gives other results; the message names the file.
    """
    folder = Path(folder)
    files = read_files(folder)
    model = _build(files, str(folder))
    if verify:
        _verify(model, files, str(folder))
    return model


def read_parts(folder: str | Path) -> ArtefactParts:
    """The parts that a verified model folder was written from, to continue it.

    Raises:
        ArtefactError: as for :func:`load_artefact`.
    """
    model, files = load_artefact(folder), read_files(folder)
    selftest = _parse_json(files, SELFTEST, str(folder))
    return ArtefactParts(
        target=model.target,
        pool=model.pool,
        arch=model.arch,
        features=model.features,
        label=model.label,
        booster_text=_gunzip(files[SCORES]),
        scale_text=_gunzip(files[SCALE]) if SCALE in files else None,
        cv_metrics=model.cv_metrics,
        feature_importances=model.feature_importances,
        manifest=model.manifest,
        selftest_problems=[OPS[model.target.op].from_dict(p["problem"]) for p in selftest["problems"]],
        extra_boosters={label: _gunzip(files[name]) for label, name in EXTRAS.items() if name in files},
        estimate=model.estimate,
        trust=model.calibration,
    )


def read_files(folder: str | Path) -> dict[str, bytes]:
    """The files of a model, by name.

    Raises:
        ArtefactError: the folder or a file of it is missing, unreadable or too large.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: no such folder; `tilewise train` writes one, or give another model_dir")
    files = {}
    for name in (*REQUIRED, *OPTIONAL):
        path = folder / name
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ArtefactError(f"{path}: larger than {MAX_FILE_BYTES} bytes, this is no model of this library")
            files[name] = path.read_bytes()
        except FileNotFoundError:
            if name in REQUIRED:
                raise ArtefactError(
                    f"{path}: missing; the folder holds no whole model, train or fetch it again"
                ) from None
        except OSError as e:
            raise ArtefactError(f"{path}: cannot be read: {e.strerror}") from e
    return files


def content_hash(files: Mapping[str, bytes]) -> str:
    """Identity of a model: SHA-256 over each file's name, length and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\n{len(files[name])}\n".encode() + files[name])
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model ready to rank; immutable, safe to share between threads.

    Attributes:
        content_hash: identity of the folder, see :func:`content_hash`.
        calibration: what :meth:`trust` answers from; None in models of before, and in continued ones.
        where: the folder it came from, for messages.
    """

    target: Target
    pool: Pool
    arch: HardwareProfile
    features: FeatureTable
    label: str
    manifest: Mapping[str, Any]
    content_hash: str
    where: str
    cv_metrics: Mapping[str, Any] = field(repr=False)
    feature_importances: Mapping[str, Any] = field(repr=False)
    scores: Ensemble = field(repr=False)
    scale: Ensemble | None = field(repr=False)
    estimate: LaunchEstimate | None = field(repr=False)
    extras: Mapping[str, Ensemble] = field(repr=False)
    calibration: Calibration | None = field(repr=False)

    @cached_property
    def _problem_features(self) -> FeatureTable:
        return self.features.of_role("problem")

    @cached_property
    def _kernel_numbers(self) -> dict[tuple[Any, ...], int]:
        columns = self.pool.columns.values()
        return {row: i for i, row in enumerate(zip(*(c.tolist() for c in columns), strict=True))}

    def matrix(self, problem: Mapping[str, Any], kernel: Mapping[str, Any]) -> np.ndarray:
        """The model's features for problem and kernel columns: float64, (rows, features)."""
        return self.features.compute(self._rows(problem, kernel))

    def _rows(self, problem: Mapping[str, Any], kernel: Mapping[str, Any]) -> Inputs:
        target = self.target
        return self.features.rows_of(problem, kernel, variant=target.variant, dtype=target.dtype, arch=self.arch)

    def score_rows(self, problem_columns: Mapping[str, Any], kernel_columns: Mapping[str, Any]) -> np.ndarray:
        """Scores of whole tables: float64, (rows,); higher is faster, comparable within one problem."""
        rows = self._rows(problem_columns, kernel_columns)
        scores: np.ndarray = self.scores.predict(self.features.compute(rows))
        rates = self._log_rates(rows, kernel_columns)
        return scores if rates is None else rates + scores

    def log_rates(self, problem_columns: Mapping[str, Any], kernel_columns: Mapping[str, Any]) -> np.ndarray | None:
        """log(TFLOPS) of whole tables by the launch estimate alone: float64, (rows,); None where there is none."""
        return self._log_rates(self._rows(problem_columns, kernel_columns), kernel_columns)

    def _log_rates(self, rows: Inputs, kernel: Mapping[str, Any]) -> np.ndarray | None:
        if self.estimate is None:
            return None
        clocks = self.estimate.log_clocks(terms_of(self.features, rows), self._kernel_index(kernel, rows.n_rows))
        rates: np.ndarray = log_work(rows) - clocks
        return rates

    def _kernel_index(self, kernel: Mapping[str, Any], n_rows: int) -> np.ndarray:
        """(rows,) index into the pool, -1 for others."""
        if kernel is self.pool.columns:
            return np.arange(len(self.pool))
        columns = [np.broadcast_to(np.asarray(kernel[n]).reshape(-1), (n_rows,)).tolist() for n in self.pool.columns]
        return np.array([self._kernel_numbers.get(row, -1) for row in zip(*columns, strict=True)], dtype=np.int64)

    @cached_property
    def ranker(self) -> Ranker | None:
        """The compiled form, made when it is first needed; None: NumPy ranks."""
        return Ranker.build(self.features, self.pool, self.arch, self.scores, self.scale, self.estimate)

    def score(self, problem: Problem) -> np.ndarray:
        """Scores of the pool's kernels: float64, (len(pool),); unsupported ones have a score too."""
        if self.ranker is not None:
            with suppress(OverflowError):
                return self.ranker.score(problem, len(self.pool))
        return self.score_rows(problem.to_dict(), self.pool.columns)

    def predict_tflops(self, problem: Problem) -> np.ndarray:
        """Predicted TFLOPS of the pool's kernels: float64, (len(pool),), positive."""
        return self.tflops_of_scores(problem, self.score(problem))

    def tflops_of_scores(self, problem: Problem, scores: np.ndarray) -> np.ndarray:
        """TFLOPS that scores of a problem stand for, without computing the scores again."""
        if self.scale is None:
            return self._tflops(scores)
        row = self._problem_features.compute(self._rows(problem.to_dict(), {}))
        return self._tflops(scores + self.scale.predict(row))

    def _tflops(self, scores: np.ndarray) -> np.ndarray:
        tflops: np.ndarray = np.maximum(self._exp(scores), MIN_TFLOPS)
        return tflops

    @property
    def _exp(self) -> np.ufunc:
        return np.expm1 if self.label == "log1p" else np.exp

    def predict_extra(self, label: str, problem: Problem) -> np.ndarray:
        """Predicted latency in ms or bandwidth in GB/s of the pool's kernels: float64, (len(pool),).

        Raises:
            ArtefactError: the model was trained without this label.
        """
        if label not in self.extras:
            raise ArtefactError(
                f"{self.where}: trained without {label}; set model.extra_labels=[{label}] and train again"
            )
        predicted: np.ndarray = np.exp(self.extras[label].predict(self.matrix(problem.to_dict(), self.pool.columns)))
        return predicted

    def trust(
        self, problem: Problem, scores: np.ndarray, *, tolerance: float = TOLERANCE, level: float = LEVEL
    ) -> Trust | None:
        """How far to trust the selection by `scores`, see :class:`Trust`; None where the model has no calibration.

        Args:
            problem: one that a kernel of the pool supports.
            scores: from :meth:`score`.
            tolerance: what the best of the top k may lose, in [0, 1).
            level: probability that a statement holds, in (0, 1).

        Raises:
            ConfigError: tolerance or level lie outside.
        """
        if self.calibration is None:
            return None
        supported = self.supported(problem)
        log_tflops = np.log(self.tflops_of_scores(problem, scores)[supported])
        rates = self.log_rates(problem.to_dict(), self.pool.columns)
        return self.calibration.trust(
            problem, log_tflops, None if rates is None else rates[supported], tolerance, level
        )

    def supported(self, problem: Problem) -> np.ndarray:
        """Which kernels of the pool can compute the problem: bool, (len(pool),)."""
        if self.ranker is not None:
            with suppress(OverflowError):
                return self.ranker.supported(problem, len(self.pool))
        return self.pool.supported(problem)

    def rank(self, problem: Problem, top_k: int | None = None) -> np.ndarray:
        """Supported kernels, best first: indices into the pool. Ties keep the pool's order, so a rank is repeatable.

        Args:
            problem: the shape.
            top_k: at most so many; None for all.

        Returns:
            int64, empty only where no kernel of the pool supports the problem.
        """
        return np.array(self.best(problem, top_k)[0], dtype=np.int64)

    def best(self, problem: Problem, top_k: int | None = None) -> tuple[Sequence[int], Sequence[float]]:
        """The ranking of :meth:`rank`, and the predicted TFLOPS of its kernels, as many."""
        if self.ranker is not None:
            try:
                kernels, scores, scale = self.ranker.best(problem, len(self.pool) if top_k is None else top_k)
            except OverflowError:
                pass
            else:
                if len(scores) == 1:  # as _tflops, in a quarter of the time of an array
                    return kernels, (max(float(self._exp(scores[0] + scale)), MIN_TFLOPS),)
                return kernels, self._tflops(np.array(scores) + scale).tolist()
        every = self.score(problem)
        order = self.rank_scores(problem, every)[:top_k]
        return order.tolist(), self.tflops_of_scores(problem, every)[order].tolist()

    def rank_scores(self, problem: Problem, scores: np.ndarray) -> np.ndarray:
        """The ranking that scores of a problem stand for, without computing the scores again."""
        order = np.argsort(-scores, kind="stable")
        supported: np.ndarray = order[self.supported(problem)[order]]
        return supported


def _build(files: Mapping[str, bytes], where: str) -> TrainedModel:
    spec, pool = _parse_json(files, SPEC, where), _pool(files, where)
    try:
        target = Target(*(spec["target"][key] for key in ("op", "variant", "dtype", "arch")))
        arch = HardwareProfile.from_dict(spec["arch"])
        features = feature_table(target.op).select(f["name"] for f in spec["features"])
        label, schema = spec["label"], spec["schema_hash"]
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
    return TrainedModel(
        target,
        pool,
        arch,
        features,
        label,
        _parse_json(files, MANIFEST, where),
        content_hash(files),
        where,
        _parse_json(files, METRICS, where),
        _parse_json(files, IMPORTANCES, where),
        _ensemble(files, SCORES, features, where),
        _ensemble(files, SCALE, features.of_role("problem"), where) if SCALE in files else None,
        _estimate(files, features, len(pool), where) if ESTIMATE in files else None,
        {label: _ensemble(files, name, features, where) for label, name in EXTRAS.items() if name in files},
        _calibration(files, where) if TRUST in files else None,
    )


def _pool(files: Mapping[str, bytes], where: str) -> Pool:
    try:
        return Pool.from_dict(_parse_json(files, POOL, where))
    except KernelError as e:
        raise ArtefactError(f"{where}: {POOL}: {e}") from e


def _check_target(target: Target, pool: Pool, arch: HardwareProfile, features: FeatureTable) -> None:
    if (pool.op, pool.variant, pool.dtype) != (target.op, target.variant, target.dtype):
        raise ArtefactError(f"the pool is of {pool.op} {pool.variant} {pool.dtype}, the model of {target.name}")
    if arch.name != target.arch:
        raise ArtefactError(f"the hardware profile is of {arch.name}, the model of {target.name}")
    if features.op != target.op:
        raise ArtefactError(f"the features are of {features.op}, the model of {target.name}")


def _ensemble(files: Mapping[str, bytes], name: str, features: FeatureTable, where: str) -> Ensemble:
    try:
        ensemble = Ensemble.from_text(_gunzip(files[name]))
    except ArtefactError as e:
        raise ArtefactError(f"{where}: {name}: {e}") from e
    if ensemble.n_features != len(features.names):
        raise ArtefactError(
            f"{where}: {name} takes {ensemble.n_features} features, {SPEC} describes {len(features.names)}"
        )
    return ensemble


def _estimate(files: Mapping[str, bytes], features: FeatureTable, n_kernels: int, where: str) -> LaunchEstimate:
    try:
        return LaunchEstimate.from_dict(json.loads(_gunzip(files[ESTIMATE])), features, n_kernels)
    except ArtefactError as e:
        raise ArtefactError(f"{where}: {ESTIMATE}: {e}") from e
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        raise ArtefactError(f"{where}: {ESTIMATE} is none of this library: {e!r}") from e


def _calibration(files: Mapping[str, bytes], where: str) -> Calibration:
    try:
        return Calibration.from_dict(json.loads(_gunzip(files[TRUST])))
    except ArtefactError as e:
        raise ArtefactError(f"{where}: {TRUST}: {e}") from e
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        raise ArtefactError(f"{where}: {TRUST} is none of this library: {e!r}") from e


def _spec(parts: ArtefactParts) -> dict[str, Any]:
    target = parts.target
    return {
        "target": {"op": target.op, "variant": target.variant, "dtype": target.dtype, "arch": target.arch},
        "label": parts.label,
        "schema_hash": parts.features.schema_hash,
        "arch": parts.arch.to_dict(),
        "features": [
            {"name": f.name, "unit": f.unit, "role": f.role, "meaning": f.meaning} for f in parts.features.features
        ],
    }


# ---- self-test ------------------------------------------------------------------------------------------------------


def _selftest(model: TrainedModel, files: Mapping[str, bytes], problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "schema_hash": model.features.schema_hash,
        "pool_hash": model.pool.hash,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
        "problems": [_observe(model, problem) for problem in problems],
    }


def _observe(model: TrainedModel, problem: Problem) -> dict[str, Any]:
    """What the model makes of a problem, as plain data."""
    matrix = model.matrix(problem.to_dict(), model.pool.columns)
    scores = model.score(problem)  # by what will rank
    rank = model.rank_scores(problem, scores)[:SELFTEST_RANKS]
    kernels = dict.fromkeys([0, *rank[:SELFTEST_ROWS].tolist()])  # the default, and the best
    return {
        "problem": problem.to_dict(),
        "features": {model.pool.names[i]: matrix[i].tolist() for i in kernels},
        "scores": scores.tolist(),
        "ranking": [model.pool.names[i] for i in rank],
        "tflops": model.tflops_of_scores(problem, scores)[rank].tolist(),
    }


def _verify(model: TrainedModel, files: Mapping[str, bytes], where: str) -> None:
    selftest = _parse_json(files, SELFTEST, where)
    where = f"{where}: {SELFTEST}"
    try:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != SELFTEST}
        for name in sorted(set(digests) | set(selftest["files"])):
            if digests.get(name) != selftest["files"].get(name):
                raise ArtefactError(f"{where}: {name} is not the file that was written with this model; fetch it again")
        for key, value in (("schema_hash", model.features.schema_hash), ("pool_hash", model.pool.hash)):
            if selftest[key] != value:
                raise ArtefactError(f"{where}: {key} is {selftest[key]!r}, the model has {value!r}")
        for i, expected in enumerate(selftest["problems"]):
            problem = OPS[model.target.op].from_dict(expected["problem"])
            _compare(expected, _observe(model, problem), model.features.names, f"{where}: problem {i}")
    except UsageError as e:
        raise e if isinstance(e, ArtefactError) else ArtefactError(f"{where}: {e}") from e
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise ArtefactError(f"{where} is damaged: {e!r}") from e


def _compare(expected: Mapping[str, Any], seen: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    remedy = "this library computes something else than the one that trained; train again"
    for kernel, row in seen["features"].items():
        if kernel not in expected["features"]:
            raise ArtefactError(f"{where}: {kernel} ranks among the best, not so when it was trained; {remedy}")
        close = np.isclose(row, expected["features"][kernel], rtol=FEATURE_TOLERANCE, atol=FEATURE_TOLERANCE)
        if not close.all():
            name = names[int(np.argmin(close))]
            raise ArtefactError(f"{where}: feature {name} of {kernel} differs; {remedy}")
    for key in ("scores", "tflops"):
        if not np.allclose(seen[key], expected[key], rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE):
            raise ArtefactError(f"{where}: {key} differ; {remedy}")
    if seen["ranking"] != expected["ranking"]:
        raise ArtefactError(f"{where}: the ranking differs; {remedy}")


# ---- bytes ----------------------------------------------------------------------------------------------------------


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _gzip(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def _gunzip(data: bytes) -> str:
    """Unpack in memory, no further than :data:`MAX_MODEL_BYTES`.

    Raises:
        ArtefactError: the data is no gzip, cut off, corrupt, too large, or no text.
    """
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # gzip, with its checksum
    try:
        text = unpacker.decompress(data, MAX_MODEL_BYTES)
        if unpacker.unconsumed_tail:
            raise ArtefactError(f"unpacks to more than {MAX_MODEL_BYTES} bytes, this is no model of this library")
        if not unpacker.eof:
            raise ArtefactError("cut off; fetch it again")
        return text.decode()
    except (zlib.error, UnicodeDecodeError) as e:
        raise ArtefactError(f"damaged: {e}; fetch it again") from e


def _parse_json(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as e:
        raise ArtefactError(f"{where}: {name} is no JSON: {e}") from e
    if not isinstance(value, dict):
        raise ArtefactError(f"{where}: {name} must be a JSON object, got {type(value).__name__}")
    return value
