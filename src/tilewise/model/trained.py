"""A trained model, ready to rank.

What it is made of is parsed from its files when it is first asked for: a model whose compiled form was kept
(:mod:`tilewise.model.compiled`) selects without its trees or its estimate ever being read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.core import compiled_core
from tilewise.core.trace import UntraceableError
from tilewise.errors import ArtefactError
from tilewise.features import FeatureTable
from tilewise.features._base import Inputs
from tilewise.features.estimate import LaunchEstimate, log_work, terms_of
from tilewise.kernels.pool import Pool
from tilewise.model.files import (
    ESTIMATE,
    EXTRAS,
    IMPORTANCES,
    MANIFEST,
    METRICS,
    SCALE,
    SCORES,
    SPEC,
    TRUST,
    content_hash,
    read_json,
    unpack_text,
)
from tilewise.model.ranker import Parts, Ranker, compile_parts
from tilewise.model.shortlist import put_behind
from tilewise.model.trees import Ensemble
from tilewise.model.trust import LEVEL, TOLERANCE, Calibration, Trust
from tilewise.ops import Problem, Target

MIN_TFLOPS = 1e-9  # predictions are positive

_PARSED = (
    "manifest", "cv_metrics", "feature_importances", "scores", "scale", "estimate", "extras", "calibration",
)  # fmt: skip

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model ready to rank; immutable, safe to share between threads.

    Attributes:
        target, pool, arch, features, label, shortlist: see :class:`~tilewise.model.artefact.ArtefactParts`.
        files: of its folder, by name.
        where: the folder it came from, for messages.
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
        """Parse every file, so that nothing can fail later.

        Raises:
            ArtefactError: a file is damaged, or does not fit the others; the message names it.
        """
        for name in _PARSED:
            getattr(self, name)

    @cached_property
    def content_hash(self) -> str:
        """Identity of the folder, see :func:`tilewise.model.files.content_hash`."""
        return content_hash(self.files)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """Where the model comes from."""
        return read_json(self.files, MANIFEST, self.where)

    @cached_property
    def cv_metrics(self) -> Mapping[str, Any]:
        """Figures of the cross-validation."""
        return read_json(self.files, METRICS, self.where)

    @cached_property
    def feature_importances(self) -> Mapping[str, Any]:
        """Importance of each feature."""
        return read_json(self.files, IMPORTANCES, self.where)

    @cached_property
    def scores(self) -> Ensemble:
        """The trees of the scores."""
        return self._ensemble(SCORES, self.features)

    @cached_property
    def scale(self) -> Ensemble | None:
        """The trees of the problem's best TFLOPS, for ``relative``."""
        return self._ensemble(SCALE, self._problem_features) if SCALE in self.files else None

    @cached_property
    def extras(self) -> Mapping[str, Ensemble]:
        """The trees of further labels."""
        return {n: self._ensemble(file, self.features) for n, file in EXTRAS.items() if file in self.files}

    @cached_property
    def estimate(self) -> LaunchEstimate | None:
        """What scores of the trees are added to."""

        def parse(values: Any) -> LaunchEstimate:
            return LaunchEstimate.from_dict(values, self.features, len(self.pool))

        return self._parsed(ESTIMATE, parse) if ESTIMATE in self.files else None

    @cached_property
    def calibration(self) -> Calibration | None:
        """What :meth:`trust` answers from; None in models of before, and in continued ones."""
        return self._parsed(TRUST, Calibration.from_dict) if TRUST in self.files else None

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

    def _parsed(self, name: str, parse: Callable[[Any], T]) -> T:
        try:
            return parse(json.loads(unpack_text(self.files[name])))
        except ArtefactError as e:
            raise ArtefactError(f"{self.where}: {name}: {e}") from e
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
            raise ArtefactError(f"{self.where}: {name} is none of this library: {e!r}") from e

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
        """Scores of whole tables, each row alone: float64, (rows,); higher is faster, comparable within one problem."""
        return self._scored(self._rows(problem_columns, kernel_columns), kernel_columns)[1]

    def score_candidates(
        self, problem: np.ndarray, problem_columns: Mapping[str, Any], kernel_columns: Mapping[str, Any]
    ) -> np.ndarray:
        """Scores of whole tables by which the rows of a problem are ranked: float64, (rows,).

        Args:
            problem: (rows,) problem of each row, numbered from 0 without gaps: its rows are the candidates.
            problem_columns: of the problems, by name.
            kernel_columns: of the kernels, by name.
        """
        rates, scores = self._scored(self._rows(problem_columns, kernel_columns), kernel_columns)
        return scores if rates is None or not self.shortlist else put_behind(problem, rates, scores, self.shortlist)

    def _scored(self, rows: Inputs, kernel: Mapping[str, Any]) -> tuple[np.ndarray | None, np.ndarray]:
        """What the estimate alone makes of rows, and what it makes of them with the trees."""
        scores: np.ndarray = self.scores.predict(self.features.compute(rows))
        rates = self._log_rates(rows, kernel)
        return rates, scores if rates is None else rates + scores

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
        made = self.compile()
        return None if made is None else made[1]

    def compile(self) -> tuple[Parts, Ranker] | None:
        """The model as the compiled core takes it, and what that makes of it; None where NumPy has to rank."""
        core = compiled_core()
        if core is None:
            return None
        try:
            parts = compile_parts(
                self.features, self.pool, self.arch, self.scores, self.scale, self.estimate, self.shortlist
            )
            return parts, Ranker.of(core, parts, self.target.op)
        except (UntraceableError, ValueError) as e:
            _log.warning("the model is ranked by NumPy, which is slower: %s", e)
            return None

    def rank_by(self, ranker: Ranker) -> None:
        """Rank by a compiled form of this model that is there already."""
        vars(self)["ranker"] = ranker  # where a cached_property looks

    def score(self, problem: Problem) -> np.ndarray:
        """Scores of the pool's kernels: float64, (len(pool),); minus infinity where they do not support the problem."""
        if self.ranker is not None:
            with suppress(OverflowError):
                return self.ranker.score(problem, len(self.pool))
        scores, can = np.full(len(self.pool), -np.inf), np.flatnonzero(self.pool.supported(problem))
        kernels = {n: column[can] for n, column in self.pool.columns.items()}
        scores[can] = self.score_candidates(np.zeros(len(can), dtype=np.int64), problem.to_dict(), kernels)
        return scores

    def predict_tflops(self, problem: Problem) -> np.ndarray:
        """Predicted TFLOPS of the pool's kernels: float64, (len(pool),), positive; hardly so for unsupported ones."""
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
        order = ranked(every)[:top_k]
        return order.tolist(), self.tflops_of_scores(problem, every)[order].tolist()


def ranked(scores: np.ndarray) -> np.ndarray:
    """The ranking that scores of :meth:`TrainedModel.score` stand for: int64, as :meth:`TrainedModel.rank`."""
    order = np.argsort(-scores, kind="stable")
    supported: np.ndarray = order[scores[order] > -np.inf]
    return supported
