"""The dispatcher: which kernel to launch for a problem.

Importing this module, and selecting from a folder, needs numpy alone: none of the training libraries, no MLflow. The
pick for a problem is deterministic; a dispatcher never changes after it was made, so threads may share it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import tilewise
from tilewise.dispatch import source
from tilewise.errors import ConfigError, KernelError, ProblemError, RegistryUnavailableError, UnknownTargetError
from tilewise.kernels.backends import KernelBase, unsupported
from tilewise.kernels.pool import Pool, load_pool
from tilewise.model.artefact import TrainedModel, load_artefact
from tilewise.model.trust import LEVEL, TOLERANCE, Trust
from tilewise.ops import OPS, Problem, Target

if TYPE_CHECKING:
    import torch

    from tilewise.dispatch.launch import Launcher

_log = logging.getLogger(__name__)

Why = Literal["model", "cache", "measured", "fallback"]


@dataclass(frozen=True)
class Selection:
    """The kernel to launch; `predicted_tflops` is None where no model was asked. `why` names who decided."""

    kernel: Any
    kernel_name: str
    predicted_tflops: float | None
    why: Why


class Dispatcher:
    """Selects kernels of one target.

    Args:
        target: what it selects for.
        pool: the kernels to choose from.
        model: scores them; None: the pool's order decides, default first.
        version: the model's version in the registry, where it came from there.
    """

    def __init__(self, target: Target, pool: Pool, model: TrainedModel | None, version: int | None = None) -> None:
        self._target = target
        self._pool = pool
        self._model = model
        self._version = version
        self._launcher: Launcher | None = None  # made by the first run(): selecting needs no GPU, no torch, no triton

    @classmethod
    def from_registry(
        cls, target: str | Target, alias: str = "production", *, uri: str | None = None, fallback: bool = True
    ) -> Self:
        """Load the model that `alias` names; the last good local copy where the registry is away.

        Args:
            target: a target or its name.
            alias: of the registered model.
            uri: of the registry; None: ``MLFLOW_TRACKING_URI``, else the project's own.
            fallback: where there is no model at all, select the pool's default kernel instead of raising.

        Raises:
            UnknownTargetError: neither the registry nor the shipped pools know the target; lists those known. Without
                `fallback` also where no version has that alias.
            RegistryUnavailableError: without `fallback`, the registry is away and there is no local copy.
            ArtefactError: the registered files are not sound, and there is no older copy.
        """
        parsed = _target(target)
        try:
            fetched = source.fetch(parsed.name, alias, uri=uri)
        except (UnknownTargetError, RegistryUnavailableError) as e:
            if not fallback:
                raise
            dispatcher = cls._without_model(parsed, e)
            _log.warning("%s: no model, so the pool's default kernel is selected: %s", parsed.name, e)
            return dispatcher
        return cls(fetched.model.target, fetched.model.pool, fetched.model, fetched.version)

    @classmethod
    def from_folder(cls, path: str | Path) -> Self:
        """Load the model in a folder such as ``models/<target>``.

        Raises:
            ArtefactError: the folder holds no sound model; the message names the file.
        """
        model = load_artefact(Path(path))
        return cls(model.target, model.pool, model)

    @classmethod
    def from_pool(cls, target: str | Target) -> Self:
        """Without a model: every selection is the first kernel of the shipped pool that supports the problem.

        Raises:
            UnknownTargetError: no pool is shipped for the target.
        """
        parsed = _target(target)
        try:
            return cls(parsed, load_pool(parsed), None)
        except KernelError as e:
            raise UnknownTargetError(str(e)) from e

    @classmethod
    def _without_model(cls, target: Target, reason: Exception) -> Self:
        try:
            return cls.from_pool(target)
        except UnknownTargetError as e:
            raise type(reason)(f"{reason}; and {e}") from e

    @property
    def target(self) -> Target:
        """What it selects for."""
        return self._target

    @property
    def version(self) -> int | None:
        """The model's version in the registry; None where it did not come from there."""
        return self._version

    @property
    def content_hash(self) -> str | None:
        """Identity of the model's files; None without a model."""
        return None if self._model is None else self._model.content_hash

    @property
    def kernel_count(self) -> int:
        """Kernels to choose from."""
        return len(self._pool)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The kernels to choose from, the default first."""
        return self._pool.kernels

    def is_supported(self, problem: Problem | Mapping[str, Any]) -> bool:
        """Whether any kernel computes the problem.

        Raises:
            ProblemError: it is not a possible problem of the target's op.
        """
        parsed = self._problem(problem)
        return bool(self._pool.supported(parsed).any())

    def rank(self, problem: Problem | Mapping[str, Any], top_k: int | None = None) -> tuple[Selection, ...]:
        """The supported kernels, best first; ties and a missing model leave the pool's order.

        Args:
            problem: a problem, or its dimensions.
            top_k: how many at most; None: all.

        Raises:
            ProblemError: it is not a possible problem of the target's op.
            KernelError: no kernel supports it.
            ConfigError: `top_k` is below 1.
        """
        if top_k is not None and top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {top_k}")
        parsed = self._problem(problem)
        ranked = self._by_model(parsed, top_k) if self._model else self._by_default(parsed, top_k)
        self._require_kernel(bool(ranked), parsed)
        return ranked

    def select(self, problem: Problem | Mapping[str, Any]) -> Selection:
        """The kernel to launch for a problem.

        Raises:
            ProblemError: it is not a possible problem of the target's op; `.field` names the dimension.
            KernelError: no kernel supports it.
        """
        return self.rank(problem, 1)[0]

    def run(
        self, problem: Problem | Mapping[str, Any], *tensors: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Launch the selected kernel on the current stream; a kernel that fails is followed by the next in rank.

        Args:
            problem: a problem, or its dimensions.
            tensors: the operands as :class:`tilewise.dispatch.launch.Launcher` describes them, on one device.
            out: where the result goes; None: a new tensor.

        Returns:
            `out`, or the new tensor. Nothing is recorded for autograd: :mod:`tilewise.torch` has functions for that.

        Raises:
            ProblemError: an impossible problem, or a tensor that does not belong to it; `.field` names it.
            KernelError: no kernel supports the problem, none of them could be launched, or the device is another arch.
        """
        if self._launcher is None:
            from tilewise.dispatch.launch import Launcher  # imports torch and triton

            self._launcher = Launcher(self._target, self.select, self.rank)
        return self._launcher.run(self._problem(problem), tensors, out)

    def trust(
        self, problem: Problem | Mapping[str, Any], *, tolerance: float = TOLERANCE, level: float = LEVEL
    ) -> Trust | None:
        """How far to trust :meth:`select`: an interval on what it loses, and how many of :meth:`rank` to measure.

        It costs about as much as the selection; nothing of it is computed unless asked for.

        Args:
            problem: a problem, or its dimensions.
            tolerance: what the best of the top k may lose, in [0, 1).
            level: probability that a statement holds, in (0, 1).

        Returns:
            None where no model decides, or one without a calibration.

        Raises:
            ProblemError: it is not a possible problem of the target's op.
            KernelError: no kernel supports it.
            ConfigError: tolerance or level lie outside.
        """
        parsed = self._problem(problem)
        if self._model is None or self._model.calibration is None:
            return None
        self._require_kernel(bool(self._pool.supported(parsed).any()), parsed)
        return self._model.trust(parsed, self._model.score(parsed), tolerance=tolerance, level=level)

    def get_instance_string(self, kernel: KernelBase | str) -> str:
        """The canonical name of a kernel of the pool, given itself, its configuration, or its name in any spelling.

        Raises:
            KernelError: it is not in the pool.
        """
        return self._pool.names[self._pool.find(kernel)]

    def export_registry_json(self) -> str:
        """All kernels, what they are made of and how many there are of each kind, as stable JSON."""
        kernels = [
            {"identifier": name, "name": name, "algorithm": kernel.to_dict()}
            for name, kernel in zip(self._pool.names, self._pool.kernels, strict=True)
        ]
        document = {
            "metadata": {
                "target": self._target.name,
                "total_kernels": len(kernels),
                "default": self._pool.names[0],
                "pool_hash": self._pool.hash,
                "export_version": "1",
                "dispatcher_version": tilewise.__version__,
            },
            "statistics": {
                "by_datatype": {self._target.dtype: len(kernels)},
                "by_pipeline": dict(sorted(Counter(k.pipeline for k in self._pool.kernels).items())),
            },
            "kernels": kernels,
        }
        return json.dumps(document, indent=1) + "\n"

    def _problem(self, problem: Problem | Mapping[str, Any]) -> Problem:
        if not isinstance(problem, Problem):
            return OPS[self._target.op].from_dict(problem)
        if problem.op != self._target.op:
            raise ProblemError("op", f"a {problem.op} problem, but {self._target.name} selects for {self._target.op}")
        return problem

    def _require_kernel(self, found: bool, problem: Problem) -> None:
        if not found:
            reason = unsupported(self._pool.default, problem, self._target.variant)
            raise KernelError(f"no kernel of {self._target.name} supports {problem}; the default one: {reason}")

    def _by_model(self, problem: Problem, top_k: int | None) -> tuple[Selection, ...]:
        assert self._model is not None
        scores = self._model.score(problem)
        order = self._model.rank_scores(problem, scores)[:top_k]
        tflops = self._model.tflops_of_scores(problem, scores)
        return tuple(Selection(*self._kernel(int(i)), float(tflops[i]), "model") for i in order)

    def _by_default(self, problem: Problem, top_k: int | None) -> tuple[Selection, ...]:
        order = self._pool.supported(problem).nonzero()[0][:top_k]
        return tuple(Selection(*self._kernel(int(i)), None, "fallback") for i in order)

    def _kernel(self, index: int) -> tuple[Any, str]:
        return self._pool.kernels[index], self._pool.names[index]


def _target(target: str | Target) -> Target:
    if isinstance(target, Target):
        return target
    try:
        return Target.parse(target)
    except ConfigError as e:
        raise UnknownTargetError(str(e)) from e
