"""The dispatcher: which kernel to launch for a problem.

Importing this module, and selecting from a folder, needs numpy alone: none of the training libraries, no MLflow. The
pick for a problem is deterministic. Threads may share a dispatcher, and forked children may go on with their parent's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from tilewise.dispatch.export import export_json
from tilewise.dispatch.folder import compiled_folder
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.launchers import launcher_of
from tilewise.dispatch.origin import Origin, parse_target, pool_without_model
from tilewise.dispatch.selection import Selection
from tilewise.dispatch.service import Problems, Service
from tilewise.dispatch.switches import Switches
from tilewise.errors import ConfigError, RegistryUnavailableError, UnknownTargetError
from tilewise.kernels.backends import KernelBase
from tilewise.model.artefact import load_artefact
from tilewise.model.trust import LEVEL, TOLERANCE, Trust
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


class Dispatcher(Service):
    """Selects kernels of one target; see :class:`tilewise.dispatch.service.Service` for its life and its arguments."""

    @classmethod
    def from_registry(
        cls,
        target: str | Target,
        alias: str = "production",
        *,
        uri: str | None = None,
        fallback: bool = True,
        refresh_s: float | None = None,
        switches: Switches | None = None,
        warm_up: Problems = (),
    ) -> Self:
        """Load the model that `alias` names; the last good local copy where the registry is away.

        Args:
            target: a target or its name.
            alias: of the registered model.
            uri: of the registry; None: ``MLFLOW_TRACKING_URI``, else the project's own.
            fallback: where there is no model at all, select without one instead of raising.
            refresh_s: seconds between looks for a new model, which then serves from one request to the next; 0: none;
                None: as the switches say.
            switches: what is forced and forbidden; None: what the environment says.
            warm_up: problems to decide before the first request, and before a new model serves.

        Raises:
            UnknownTargetError: neither the registry nor the shipped pools know the target; lists those known. Without
                `fallback` also where no version has that alias.
            RegistryUnavailableError: without `fallback`, the registry is away and there is no local copy.
            ArtefactError: the registered files are not sound, and there is no older copy.
            ConfigError: a switch is out of its range.
        """
        switches = switches or Switches.read()
        if refresh_s is not None:
            switches = switches.but(refresh_s=refresh_s)
        parsed = parse_target(target)
        origin = Origin(parsed.name, alias, uri)
        options: dict[str, Any] = {"switches": switches, "warm_up": warm_up, "origin": origin}
        if switches.model == "off":
            return cls(*pool_without_model(parsed), None, **options)
        try:
            fetched = origin.first(switches)
        except (UnknownTargetError, RegistryUnavailableError) as e:
            if not fallback or switches.model == "require":
                raise
            dispatcher = cls(*pool_without_model(parsed, e), None, missing=f"there is no model: {e}", **options)
            _log.warning("%s: no model, so the pool's default kernel is selected: %s", parsed.name, e)
            return dispatcher
        return cls(fetched.model.target, fetched.model.pool, fetched.model, fetched.version, **options)

    @classmethod
    def from_folder(cls, path: str | Path, *, switches: Switches | None = None, warm_up: Problems = ()) -> Self:
        """Load the model in a folder such as ``models/<target>``.

        Raises:
            ArtefactError: the folder holds no sound model; the message names the file.
        """
        model = load_artefact(Path(path), keep=compiled_folder())
        return cls(model.target, model.pool, model, switches=switches, warm_up=warm_up)

    @classmethod
    def from_pool(cls, target: str | Target, *, switches: Switches | None = None) -> Self:
        """Without a model: the shipped pool's first kernel that supports the problem, or the fastest measured.

        Raises:
            UnknownTargetError: no pool is shipped for the target.
        """
        return cls(*pool_without_model(parse_target(target)), None, switches=switches)

    @property
    def target(self) -> Target:
        """What it selects for."""
        return self._generation.target

    @property
    def version(self) -> int | None:
        """The model's version in the registry; None where it did not come from there."""
        return self._generation.version

    @property
    def content_hash(self) -> str | None:
        """Identity of the model's files; None without a model."""
        return self._generation.content_hash

    @property
    def kernel_count(self) -> int:
        """Kernels of the pool."""
        return len(self._generation.pool)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The kernels of the pool, the default first."""
        return self._generation.pool.kernels

    def is_supported(self, problem: Problem | Mapping[str, Any]) -> bool:
        """Whether any kernel computes the problem.

        Raises:
            ProblemError: it is not a possible problem of the target's op.
        """
        return bool(self._generation.supported(self._problem(problem)).any())

    def rank(self, problem: Problem | Mapping[str, Any], top_k: int | None = None) -> tuple[Selection, ...]:
        """The supported kernels, best first by the model; ties and a missing model leave the pool's order.

        Nothing is measured or looked up: where :meth:`select` answers by measurements, it may pick another.

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
        return self._generation.rank(self._problem(problem), top_k)

    def select(self, problem: Problem | Mapping[str, Any]) -> Selection:
        """The kernel to launch for a problem; remembered, so that asking again costs a look-up.

        Raises:
            ProblemError: it is not a possible problem of the target's op; `.field` names the dimension.
            KernelError: no kernel supports it.
        """
        generation = self._generation  # once: a swap in the midst of this changes nothing here
        if type(problem) is dict:
            key = self._key_of(problem)
            try:
                known = generation.by_mapping.young.get(key)
            except TypeError:  # a value that cannot be a key
                return self._select(generation, self._problem(problem))
            return known or self._select_by_mapping(generation, problem, key)
        try:
            return generation.fast.young[problem]  # type: ignore[index]
        except (KeyError, TypeError):
            return self._select(generation, self._problem(problem))

    def _select_by_mapping(
        self, generation: Generation, mapping: dict[str, Any], key: tuple[Any, ...]
    ) -> Selection:  # fmt: skip
        problem = self._problem(mapping)
        selection = self._select(generation, problem)
        if generation.known.young.get(problem) is selection:  # it lasts
            generation.by_mapping.put(key, selection)
        return selection

    def explain(self, problem: Problem | Mapping[str, Any]) -> dict[str, Any]:
        """Decide anew and tell why, as plain data; see :func:`tilewise.dispatch.explain.explain`.

        Raises:
            ProblemError, KernelError: as for :meth:`select`.
        """
        from tilewise.dispatch.explain import explain  # not needed to serve

        generation, parsed = self._generation, self._problem(problem)
        begun = perf_counter()
        decision = generation.decide(parsed)
        return explain(generation, parsed, decision, perf_counter() - begun)

    def run(
        self, problem: Problem | Mapping[str, Any], *tensors: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Launch the selected kernel on the current stream; a kernel that fails is followed by the next in rank.

        Args:
            problem: a problem, or its dimensions.
            tensors: the operands as :class:`tilewise.dispatch.launch.Launcher` describes them, on one device; for CK
                Tile's kernels arrays as :class:`tilewise.dispatch.ck_launch.CkLauncher` has them.
            out: where the result goes; None: a new tensor.

        Returns:
            `out`, or the new tensor. Nothing is recorded for autograd: :mod:`tilewise.torch` has functions for that.

        Raises:
            ProblemError: an impossible problem, or a tensor that does not belong to it; `.field` names it.
            KernelError: no kernel supports the problem, none of them could be launched, or the device is another arch.
        """
        generation = self._generation
        launcher = generation.launcher
        if launcher is None:
            select, made_by = partial(self._decided, generation), generation.pool.backend
            launcher = launcher_of(made_by, generation.target, select, generation.rank, generation.before)
            generation.launcher, generation.before = launcher, None
        parsed = self._problem(problem)
        if self._record is not None:
            self._select(generation, parsed)
        out = launcher.run(parsed, tensors, out)
        if self._shadow is not None:
            self._shadow.ran(generation, parsed, tensors, out)
        return out

    def trust(
        self, problem: Problem | Mapping[str, Any], *, tolerance: float = TOLERANCE, level: float = LEVEL
    ) -> Trust | None:
        """How far to trust the model's pick: an interval on what it loses, and how many of :meth:`rank` to measure.

        It takes about a millisecond; nothing of it is computed unless asked for.

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
        generation, parsed = self._generation, self._problem(problem)
        model = generation.model
        if model is None or model.calibration is None:
            return None
        generation.require_kernel(parsed)
        return model.trust(parsed, model.score(parsed), tolerance=tolerance, level=level)

    def get_instance_string(self, kernel: KernelBase | str) -> str:
        """The canonical name of a kernel of the pool, given itself, its configuration, or its name in any spelling.

        Raises:
            KernelError: it is not in the pool.
        """
        pool = self._generation.pool
        return pool.names[pool.find(kernel)]

    def export_registry_json(self) -> str:
        """All kernels, what they are made of and how many there are of each kind, as stable JSON."""
        return export_json(self._generation.target, self._generation.pool)
