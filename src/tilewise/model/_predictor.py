"""Predictions for any kernels, those outside the model's pool included: TFLOPS, latency and bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np

from tilewise.errors import KernelError
from tilewise.kernels import KernelBase, illegal, unsupported
from tilewise.metrics import Floats
from tilewise.model._artefact import load_artefact
from tilewise.model._trained_model import TrainedModel
from tilewise.ops import Problem

if TYPE_CHECKING:
    import pandas as pd

KERNEL_NAME = "kernel_name"
QUANTITIES = ("tflops", "latency_ms", "bandwidth_gb_s")

ProblemLike: TypeAlias = Problem | Mapping[str, Any]
KernelLike: TypeAlias = KernelBase | str


class Prediction(NamedTuple):
    """The predicted figures of one kernel for one problem.

    Attributes:
        kernel_name: its canonical name.
        kernel: the kernel.
        tflops: predicted TFLOPS; NaN if the kernel cannot compute the problem, as the other figures.
        latency_ms: predicted milliseconds, by the model's own trees for latency, or else from `tflops`.
        bandwidth_gb_s: predicted GB/s of the fewest bytes to move, by the model's own trees, or else from `latency_ms`.
        why_unsupported: why the kernel cannot compute the problem; None if it can.
    """

    kernel_name: str
    kernel: Any
    tflops: float
    latency_ms: float
    bandwidth_gb_s: float
    why_unsupported: str | None = None

    def figures(self) -> dict[str, float]:
        """Return the predicted figures by name."""
        return {name: getattr(self, name) for name in QUANTITIES}


class Predictor:
    """Predicts the figures of any kernels of the backends that a model knows; threads may share it.

    Kernels are given as themselves, by name in any spelling, or as configurations; None stands for the model's pool. A
    problem may be a mapping of dimensions, which may state its ``dtype``. Where the model ranks a shortlist, the best
    kernels of the given list by the cost model are its shortlist.

    Args:
        model: the model, see :func:`tilewise.model.load_artefact`.
    """

    def __init__(self, model: TrainedModel) -> None:
        self.model = model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the predictor of the model in a folder.

        Raises:
            ArtefactError: the folder holds no valid model; names the file.
        """
        return cls(load_artefact(folder))

    def predict(self, problem: ProblemLike, kernels: Sequence[KernelLike] | None = None) -> tuple[Prediction, ...]:
        """Return the prediction of each kernel, in the given order.

        Raises:
            ProblemError: the problem is impossible, of another op, or of another dtype than the model's.
            KernelError: a name is no kernel of the target, or of a backend that the model has not learnt.
        """
        parsed = self.model.target.problem(problem)
        pool = self.model.pool
        listed: Sequence[KernelBase] = pool.kernels if kernels is None else [self._kernel(k) for k in kernels]
        if kernels is None:
            reasons = dict(zip(listed, pool.unsupported(parsed).tolist(), strict=True))
        else:
            reasons = {kernel: self._why_unsupported(kernel, parsed) for kernel in listed}
        able = [kernel for kernel, reason in reasons.items() if reason is None]
        tflops = self._tflops(parsed, able, is_pool=kernels is None)
        latency = self._extra("latency", parsed, able, parsed.flops / (tflops * 1e9))
        bandwidth = self._extra("bandwidth", parsed, able, parsed.min_bytes(self.model.target.dtype) / (latency * 1e6))
        figures = dict(zip(able, zip(tflops.tolist(), latency.tolist(), bandwidth.tolist(), strict=True), strict=True))
        nothing = (np.nan, np.nan, np.nan)
        return tuple(Prediction(self._name(k), k, *figures.get(k, nothing), reasons[k]) for k in listed)

    def rank(
        self, problem: ProblemLike, kernels: Sequence[KernelLike] | None = None, top_k: int | None = None
    ) -> tuple[Prediction, ...]:
        """Return the kernels that compute the problem, the highest predicted TFLOPS first, ties in the given order.

        Args:
            problem: a problem, or its dimensions.
            kernels: kernels to rank; None for the model's pool.
            top_k: largest number of kernels to return; None for all.

        Raises:
            ProblemError, KernelError: as for :meth:`predict`.
        """
        able = [p for p in self.predict(problem, kernels) if p.why_unsupported is None]
        return tuple(sorted(able, key=lambda p: -p.tflops)[:top_k])

    def predict_latency(self, problem: ProblemLike, kernels: Sequence[KernelLike] | None = None) -> Floats:
        """Return predicted milliseconds, NaN for kernels that cannot compute the problem: (kernels,)."""
        return np.array([p.latency_ms for p in self.predict(problem, kernels)])

    def predict_bandwidth(self, problem: ProblemLike, kernels: Sequence[KernelLike] | None = None) -> Floats:
        """Return predicted GB/s, NaN for kernels that cannot compute the problem: (kernels,)."""
        return np.array([p.bandwidth_gb_s for p in self.predict(problem, kernels)])

    def predict_batch(
        self, problems: Iterable[ProblemLike], kernels: Sequence[KernelLike] | None = None
    ) -> list[tuple[Prediction, ...]]:
        """Return :meth:`predict` of each problem, in order."""
        return [self.predict(problem, kernels) for problem in problems]

    def rank_batch(
        self, problems: Iterable[ProblemLike], kernels: Sequence[KernelLike] | None = None, top_k: int | None = None
    ) -> list[tuple[Prediction, ...]]:
        """Return :meth:`rank` of each problem, in order."""
        return [self.rank(problem, kernels, top_k) for problem in problems]

    def predict_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with columns ``predicted_`` TFLOPS, latency and bandwidth of each row's kernel.

        Args:
            frame: one row per problem and kernel: the problem's columns, optionally ``dtype``, and ``kernel_name``.
                Other columns are ignored. Missing columns and empty cells take their default.

        Raises:
            KernelError: the column ``kernel_name`` is missing, or as for :meth:`predict`.
            ProblemError: a row is an impossible problem, or of another dtype.
        """
        if KERNEL_NAME not in frame:
            raise KernelError(f"a frame needs the column {KERNEL_NAME}, got {', '.join(map(str, frame.columns))}")
        known = {*self.model.target.problem_type.column_names(), "dtype"} & set(frame.columns)
        rows_of: dict[Problem, list[int]] = {}
        for row, cells in enumerate(frame[[name for name in frame.columns if name in known]].to_dict("records")):
            rows_of.setdefault(self.model.target.problem(given_cells(cells)), []).append(row)
        names, figures = frame[KERNEL_NAME].tolist(), np.empty((len(frame), len(QUANTITIES)))
        for problem, rows in rows_of.items():
            predicted = self.predict(problem, [names[row] for row in rows])
            figures[rows] = [tuple(p.figures().values()) for p in predicted]
        return frame.assign(**{f"predicted_{name}": figures[:, i] for i, name in enumerate(QUANTITIES)})

    def _tflops(self, problem: Problem, kernels: Sequence[KernelBase], *, is_pool: bool) -> Floats:
        """Return the predicted TFLOPS of kernels that support the problem."""
        model = self.model
        if not kernels:
            return np.empty(0)
        if is_pool:
            scores = model.score(problem)[[self._number_of[kernel] for kernel in kernels]]
        else:
            columns = self._columns(kernels)
            scores = model.score_candidates(np.zeros(len(kernels), dtype=np.int64), problem.to_dict(), columns)
        return model.tflops_of_scores(problem, scores)

    def _extra(self, label: str, problem: Problem, kernels: Sequence[KernelBase], derived: Floats) -> Floats:
        """Return the predictions of the model's own trees for a label, or the derived ones if it has no such trees."""
        trees = self.model.extras.get(label)
        if trees is None or not kernels:
            return derived
        predicted: Floats = np.exp(trees.predict(self.model.matrix(problem.to_dict(), self._columns(kernels))))
        return predicted

    def _columns(self, kernels: Sequence[KernelBase]) -> dict[str, np.ndarray]:
        backend = self.model.pool.backend
        rows = [backend.row_of(kernel) for kernel in kernels]
        return {name: np.array([row[name] for row in rows]) for name in backend.column_kinds()}

    def _why_unsupported(self, kernel: KernelBase, problem: Problem) -> str | None:
        target = self.model.target
        return illegal(kernel, target, self.model.arch) or unsupported(kernel, problem, target.variant, target.dtype)

    def _name(self, kernel: KernelBase) -> str:
        target = self.model.target
        return kernel.name(target.op, target.variant, target.dtype)

    @cached_property
    def _number_of(self) -> dict[KernelBase, int]:
        return {kernel: number for number, kernel in enumerate(self.model.pool.kernels)}

    @cached_property
    def _by_name(self) -> dict[str, KernelBase]:
        pool = self.model.pool
        return {text: k for name, k in zip(pool.names, pool.kernels, strict=True) for text in (name, k.config)}

    def _kernel(self, kernel: KernelLike) -> KernelBase:
        """Return a kernel that the model's features describe."""
        backend = self.model.pool.backend
        if isinstance(kernel, str):
            return self._by_name.get(kernel) or self._parsed(kernel)
        if type(kernel) not in {source.kernel for source in backend.sources}:
            raise KernelError(f"{self.model.target.name} has learnt kernels of {backend.label} only, got {kernel!r}")
        return kernel

    def _parsed(self, name: str) -> KernelBase:
        """Return the kernel of a name or configuration outside the pool."""
        target, faults = self.model.target, []
        for source in self.model.pool.backend.sources:
            try:
                parsed = source.parse(name, target)
                if (parsed.op, parsed.variant, parsed.dtype) == (target.op, target.variant, target.dtype):
                    return parsed.kernel
                faults.append(f"it is a kernel of {parsed.op} {parsed.variant} {parsed.dtype}")
            except KernelError as e:
                faults.append(str(e))
            try:
                return source.kernel.from_config(name)
            except KernelError:
                pass
        raise KernelError(f"{name[:200]!r} names no kernel of {target.name}: {'; '.join(dict.fromkeys(faults))}")


def given_cells(cells: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the cells of a table's row that are not empty, with whole floats as integers.

    A column with empty cells arrives as floats: 3.0 is the integer 3, and NaN an empty cell.
    """
    whole = {str(k): int(v) if isinstance(v, float) and v.is_integer() else v for k, v in cells.items() if v == v}
    return {name: value for name, value in whole.items() if value is not None}
