"""A trained model, ready to rank.

Its members are parsed from its files on first use. A model whose compiled form was cached
(:mod:`tilewise.model._compiled_model`) therefore selects without reading its trees or its cost model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tilewise.arch import HardwareProfile
from tilewise.core import UntraceableError, compiled_core
from tilewise.errors import ArtefactError
from tilewise.features import CostModel, FeatureTable, Inputs, log_work, terms_of
from tilewise.kernels import BACKEND_COLUMN, FILL, Pool, backend_of_columns
from tilewise.metrics import Floats, Ints
from tilewise.model._artefact_files import (
    CALIBRATION,
    COST_MODEL,
    EXTRAS,
    IMPORTANCES,
    MANIFEST,
    MAX_CALIBRATION_BYTES,
    METRICS,
    SCALE,
    SCORES,
    SPEC,
    JsonObject,
    check_fields,
    content_hash,
    read_json,
    unpack_text,
)
from tilewise.model._confidence import LEVEL, TOLERANCE, Calibration, Confidence
from tilewise.model._ranker import Ranker, RankerInputs, RankerParts, compile_parts
from tilewise.model._shortlist import put_behind, shortlisted
from tilewise.model._trees import Ensemble
from tilewise.ops import Problem, Target

MIN_TFLOPS = 1e-9  # predictions are positive

_PARSED = (
    "manifest", "cv_metrics", "feature_importances", "scores", "scale", "cost_model", "extras", "calibration",
)  # fmt: skip

Columns: TypeAlias = Mapping[str, npt.ArrayLike]
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model ready to rank; immutable, safe to share between threads.

    Attributes:
        target, pool, arch, features, label, shortlist: see :class:`~tilewise.model.ArtefactParts`.
        files: contents of the folder's files, by name.
        where: the folder, for messages.
    """

    target: Target
    pool: Pool
    arch: HardwareProfile
    features: FeatureTable
    label: str
    shortlist: int
    files: Mapping[str, bytes] = field(repr=False)
    where: str

    def read_all(self) -> None:
        """Parse every file, so that no later call can fail.

        Raises:
            ArtefactError: a file is damaged or inconsistent with the others; the message names it.
        """
        for name in _PARSED:
            getattr(self, name)

    @cached_property
    def content_hash(self) -> str:
        """Identity of the folder's contents, see :func:`tilewise.model._artefact_files.content_hash`."""
        return content_hash(self.files)

    @cached_property
    def manifest(self) -> JsonObject:
        """Origin of the model: data hash, revision, parameters, versions."""
        return read_json(self.files, MANIFEST, self.where)

    @cached_property
    def cv_metrics(self) -> JsonObject:
        """Metrics of the cross-validation."""
        return read_json(self.files, METRICS, self.where)

    @cached_property
    def feature_importances(self) -> JsonObject:
        """Importance of each feature."""
        return read_json(self.files, IMPORTANCES, self.where)

    @cached_property
    def scores(self) -> Ensemble:
        """Trees of the scores."""
        return self._ensemble(SCORES, self.features)

    @cached_property
    def scale(self) -> Ensemble | None:
        """Trees of what a problem's scores lack to be log(TFLOPS); None for labels without a scale."""
        return self._ensemble(SCALE, self._problem_features) if SCALE in self.files else None

    @cached_property
    def extras(self) -> Mapping[str, Ensemble]:
        """Trees of the additional labels."""
        return {n: self._ensemble(file, self.features) for n, file in EXTRAS.items() if file in self.files}

    @cached_property
    def cost_model(self) -> CostModel | None:
        """Cost model that the trees' scores are added to; None for labels without one."""

        def parse(values: JsonObject) -> CostModel:
            return CostModel.from_dict(values, self.features, len(self.pool))

        return self._parsed(COST_MODEL, parse) if COST_MODEL in self.files else None

    @cached_property
    def calibration(self) -> Calibration | None:
        """Calibration of :meth:`confidence`; None for models of earlier formats and for warm-started models."""
        return self._parsed(CALIBRATION, Calibration.from_dict) if CALIBRATION in self.files else None

    def _ensemble(self, name: str, features: FeatureTable) -> Ensemble:
        try:
            ensemble = Ensemble.from_text(unpack_text(self.files[name]))
        except ArtefactError as e:
            raise ArtefactError(f"{self.where}: {name}: {e}") from e
        if ensemble.n_features != len(features.names):
            raise ArtefactError(
                f"{self.where}: {name} takes {ensemble.n_features} features, {SPEC} describes {len(features.names)}"
            )
        return ensemble

    def _parsed(self, name: str, parse: Callable[[JsonObject], T]) -> T:
        try:
            most = MAX_CALIBRATION_BYTES if name == CALIBRATION else None
            values = json.loads(unpack_text(self.files[name], most))
            check_fields(name, values)
            return parse(values)
        except ArtefactError as e:
            raise ArtefactError(f"{self.where}: {name}: {e}") from e
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
            raise ArtefactError(f"{self.where}: {name} was not written by tilewise: {e!r}") from e

    @cached_property
    def _problem_features(self) -> FeatureTable:
        return self.features.of_role("problem")

    @cached_property
    def _kernel_numbers(self) -> dict[tuple[object, ...], int]:
        columns = self.pool.columns.values()
        return {row: i for i, row in enumerate(zip(*(c.tolist() for c in columns), strict=True))}

    def matrix(self, problem: Columns, kernel: Columns) -> Floats:
        """Return the model's features for problem and kernel columns: float64, (rows, features)."""
        return self.features.compute(self._rows(problem, kernel))

    def _rows(self, problem: Columns, kernel: Columns) -> Inputs:
        target = self.target
        return self.features.rows_of(problem, kernel, variant=target.variant, dtype=target.dtype, arch=self.arch)

    def score_rows(self, problem_columns: Columns, kernel_columns: Columns) -> Floats:
        """Return the scores of whole tables, each row independent of the others: float64, (rows,).

        Higher is faster. Scores are comparable within one problem. The shortlist does not apply.
        """
        rows = self._rows(problem_columns, kernel_columns)
        scores, rates = self.scores.predict(self.features.compute(rows)), self._log_rates(rows, kernel_columns)
        return scores if rates is None else rates + scores

    def score_candidates(self, problem: Ints, problem_columns: Columns, kernel_columns: Columns) -> Floats:
        """Return the scores that rank the rows of each problem in whole tables: float64, (rows,).

        Args:
            problem: (rows,) problem of each row, numbered from 0 without gaps; its rows are its candidates.
            problem_columns: columns of the problems, by name.
            kernel_columns: columns of the kernels, by name.
        """
        rates = self.log_rates(problem_columns, kernel_columns) if self.shortlist else None
        if rates is None:
            return self.score_rows(problem_columns, kernel_columns)
        listed, scores = shortlisted(problem, rates, self.shortlist), rates.copy()
        some = self._rows(_taken(problem_columns, listed), _taken(kernel_columns, listed))
        scores[listed] += self.scores.predict(self.features.compute(some))
        return put_behind(problem, rates, scores, listed)

    def log_rates(self, problem_columns: Columns, kernel_columns: Columns) -> Floats | None:
        """Return log(TFLOPS) of whole tables by the cost model alone: float64, (rows,); None without a cost model."""
        return self._log_rates(self._rows(problem_columns, kernel_columns), kernel_columns)

    def _log_rates(self, rows: Inputs, kernel: Columns) -> Floats | None:
        if self.cost_model is None:
            return None
        clocks = self.cost_model.log_clocks(terms_of(self.features, rows), self._kernel_index(kernel, rows.n_rows))
        rates: Floats = log_work(rows) - clocks
        return rates

    def _kernel_index(self, kernel: Columns, n_rows: int) -> Ints:
        """Return the index of each row's kernel in the pool, -1 for other kernels: (rows,)."""
        if kernel is self.pool.columns:
            return np.arange(len(self.pool))
        known = self._pool_columns(kernel)
        columns = [np.broadcast_to(np.asarray(known[n]).reshape(-1), (n_rows,)).tolist() for n in self.pool.columns]
        return np.array([self._kernel_numbers.get(row, -1) for row in zip(*columns, strict=True)], dtype=np.int64)

    def _pool_columns(self, kernel: Columns) -> Columns:
        """Return kernel columns of one backend as those of the pool, which may mix several."""
        kinds = self.pool.backend.column_kinds()
        filled = {name: FILL[kind] for name, kind in kinds.items() if name not in kernel}
        if BACKEND_COLUMN in filled:
            filled[BACKEND_COLUMN] = backend_of_columns(kernel).name
        return {**kernel, **filled}

    @property
    def ranker_inputs(self) -> RankerInputs:
        """Members that decide the ranking."""
        return RankerInputs(
            self.features, self.pool, self.arch, self.scores, self.scale, self.cost_model, self.shortlist
        )

    @cached_property
    def ranker(self) -> Ranker | None:
        """Compiled form, made on first use; None if NumPy ranks."""
        compiled = self.compile()
        return None if compiled is None else compiled[1]

    def compile(self) -> tuple[RankerParts, Ranker] | None:
        """Return the model in the form that the compiled core takes, and its ranker; None if NumPy has to rank."""
        core = compiled_core()
        if core is None:
            return None
        try:
            parts = compile_parts(self.ranker_inputs)
            return parts, Ranker.of(core, parts, self.target.op)
        except (UntraceableError, ValueError) as e:
            _log.warning("NumPy ranks this model, which is slower: %s", e)
            return None

    def rank_by(self, ranker: Ranker) -> None:
        """Rank by an existing compiled form of this model."""
        vars(self)["ranker"] = ranker  # the value of the cached_property

    def score(self, problem: Problem) -> Floats:
        """Return the scores of the pool's kernels: float64, (len(pool),); minus infinity for unsupported kernels."""
        if self.ranker is not None:
            with suppress(OverflowError):
                return self.ranker.score(problem, len(self.pool))
        scores, can = np.full(len(self.pool), -np.inf), np.flatnonzero(self.pool.supported(problem))
        kernels = {n: column[can] for n, column in self.pool.columns.items()}
        scores[can] = self.score_candidates(np.zeros(len(can), dtype=np.int64), problem.to_dict(), kernels)
        return scores

    def predict_tflops(self, problem: Problem) -> Floats:
        """Return the predicted TFLOPS of the pool's kernels: float64, (len(pool),).

        All are positive; unsupported kernels have :data:`MIN_TFLOPS`.
        """
        return self.tflops_of_scores(problem, self.score(problem))

    def tflops_of_scores(self, problem: Problem, scores: Floats) -> Floats:
        """Convert scores of a problem to TFLOPS, without computing them again."""
        if self.scale is None:
            return self._tflops(scores)
        row = self._problem_features.compute(self._rows(problem.to_dict(), {}))
        return self._tflops(scores + self.scale.predict(row))

    def _tflops(self, scores: Floats) -> Floats:
        tflops: Floats = np.maximum(self._exp(scores), MIN_TFLOPS)
        return tflops

    @property
    def _exp(self) -> np.ufunc:
        return np.expm1 if self.label == "log1p" else np.exp

    def predict_extra(self, label: str, problem: Problem) -> Floats:
        """Return the predicted latency in ms or bandwidth in GB/s of the pool's kernels: float64, (len(pool),).

        Raises:
            ArtefactError: the model was trained without this label.
        """
        if label not in self.extras:
            raise ArtefactError(
                f"{self.where}: trained without {label}; set model.extra_labels=[{label}] and train again"
            )
        predicted: Floats = np.exp(self.extras[label].predict(self.matrix(problem.to_dict(), self.pool.columns)))
        return predicted

    def confidence(
        self, problem: Problem, scores: Floats, *, tolerance: float = TOLERANCE, level: float = LEVEL
    ) -> Confidence | None:
        """Bound the regret of the selection by `scores`; None for a model without calibration.

        Args:
            problem: a problem that some kernel of the pool supports.
            scores: its scores, from :meth:`score`.
            tolerance: the loss that the fastest of the top k may have, in [0, 1).
            level: probability of each statement, in (0, 1).

        Raises:
            ConfigError: tolerance or level is out of range.
        """
        if self.calibration is None:
            return None
        supported = self.supported(problem)
        log_tflops = np.log(self.tflops_of_scores(problem, scores)[supported])
        rates = self.log_rates(problem.to_dict(), self.pool.columns)
        return self.calibration.confidence(
            problem, log_tflops, None if rates is None else rates[supported], tolerance, level
        )

    def supported(self, problem: Problem) -> npt.NDArray[np.bool_]:
        """Return which kernels of the pool support the problem: bool, (len(pool),)."""
        if self.ranker is not None:
            with suppress(OverflowError):
                return self.ranker.supported(problem, len(self.pool))
        return self.pool.supported(problem)

    def rank(self, problem: Problem, top_k: int | None = None) -> Ints:
        """Return the supported kernels, best first, ties in the pool's order: indices into the pool.

        Args:
            problem: the shape.
            top_k: the most kernels to return; None for all.

        Returns:
            int64, empty only if no kernel of the pool supports the problem.
        """
        return np.array(self.best(problem, top_k)[0], dtype=np.int64)

    def best(self, problem: Problem, top_k: int | None = None) -> tuple[Sequence[int], Sequence[float]]:
        """Return the ranking of :meth:`rank` and the predicted TFLOPS of its kernels."""
        if self.ranker is not None:
            try:
                kernels, scores, scale = self.ranker.best(problem, len(self.pool) if top_k is None else top_k)
            except OverflowError:
                pass
            else:
                if len(scores) == 1:  # the result of _tflops, in a quarter of the time of an array
                    return kernels, (max(float(self._exp(scores[0] + scale)), MIN_TFLOPS),)
                return kernels, self._tflops(np.array(scores) + scale).tolist()
        every = self.score(problem)
        order = ranked(every)[:top_k]
        return order.tolist(), self.tflops_of_scores(problem, every)[order].tolist()


def _taken(columns: Columns, rows: npt.NDArray[np.bool_]) -> Columns:
    """Return some rows of columns; single values stand for all rows."""
    arrays = {name: np.atleast_1d(column) for name, column in columns.items()}
    return {name: column[rows] if len(column) == len(rows) else column for name, column in arrays.items()}


def ranked(scores: Floats) -> Ints:
    """Return the ranking by scores of :meth:`TrainedModel.score`, in the form of :meth:`TrainedModel.rank`."""
    order = np.argsort(-scores, kind="stable")
    supported: Ints = order[scores[order] > -np.inf]
    return supported
