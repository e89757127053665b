"""The dispatcher: it selects the kernel to launch for a problem.

Importing this module and selecting from a folder need NumPy only: no training library, no MLflow, no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tilewise.arch import HardwareProfile
from tilewise.dispatch._figures import Figures, read_figures
from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch._make_shadow import make_shadow
from tilewise.dispatch._mapping import fastest_mapping_key
from tilewise.dispatch._refresher import Refresher
from tilewise.dispatch._runner import Runner
from tilewise.dispatch._selection import Comparison, Selection, checked_count
from tilewise.dispatch._selector import ProblemLike, Selector
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.measuring import Measurer, ReplayMeasurer, local_measurer
from tilewise.dispatch.sources import Origin, compiled_folder, parse_target, pool_without_model, target_or_name
from tilewise.errors import RegistryUnavailableError, UnknownTargetError
from tilewise.kernels import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind, KernelBase, Pool
from tilewise.model import LEVEL, TOLERANCE, Confidence, Predictor, TrainedModel, load_artefact
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    import torch

    from tilewise.dispatch._explain import Explanation
    from tilewise.dispatch.launching import DirectCall

_log = logging.getLogger(__name__)


class Dispatcher:
    """A selector and launcher of one target's kernels.

    Selections are deterministic. Threads may share a dispatcher, and forked children may go on using their parent's.
    Its parts: a selector answers requests, a refresher swaps in new models, a runner launches kernels, and an optional
    shadow compares a second model with the one that serves.

    Args:
        target: the target.
        pool: the kernels to choose from.
        model: ranks the kernels; None: measurements decide, or else the pool's order, default first.
        version: the model's number in the registry, if it comes from there.
        switches: settings; None for those of the environment.
        measurer: measures if the switches allow it; None for this machine's GPU, or the libraries of CK Tile's kernels.

    Raises:
        ConfigError: the switches forbid every kernel of the pool.
    """

    def __init__(
        self, target: Target, pool: Pool, model: TrainedModel | None, version: int | None = None, *,
        switches: Switches | None = None, measurer: Measurer | None = None,
    ) -> None:  # fmt: skip
        self._assemble(Deployment(target, pool, model, version), switches or Switches.read(), None, measurer)

    @classmethod
    def _deploy(
        cls, deployment: Deployment, switches: Switches, origin: Origin | None, warm_up: Iterable[ProblemLike]
    ) -> Self:
        """Build a dispatcher that refreshes its model from an origin."""
        dispatcher = cls.__new__(cls)
        dispatcher._assemble(deployment, switches, origin, None, warm_up)
        return dispatcher

    def _assemble(
        self, deployment: Deployment, switches: Switches, origin: Origin | None, measurer: Measurer | None,
        warm_up: Iterable[ProblemLike] = (),
    ) -> None:  # fmt: skip
        if measurer is None:
            simulate, backend = switches.simulate, deployment.pool.backend
            measurer = ReplayMeasurer(simulate) if simulate else local_measurer(backend)
        generation = Generation(deployment, switches, measurer)
        self._key_of = fastest_mapping_key()
        self._shadow = make_shadow(generation, switches, origin, measurer)
        self._selector = Selector(generation, switches, self._shadow)
        self._refresher = Refresher(self._selector, origin, switches, measurer, self._shadow)
        self._runner = Runner(self._selector, self._shadow)
        self._selector.warm_up_with(warm_up)
        if self._shadow is not None:
            self._shadow.follow(generation)
        self._refresher.start()

    @classmethod
    def from_registry(
        cls, target: str | Target, alias: str = "production", *, uri: str | None = None, fallback: bool = True,
        switches: Switches | None = None, warm_up: Iterable[ProblemLike] = (), **values: object,
    ) -> Self:  # fmt: skip
        """Load the model that an alias names, or its last local copy while the registry is unavailable.

        Args:
            target: a target or its name.
            alias: of the registered model, or a version's number.
            uri: of the registry; None for ``MLFLOW_TRACKING_URI``, or else the project's own.
            fallback: select without a model if none can be loaded, instead of raising.
            switches: settings; None for those of the environment.
            warm_up: problems to decide before the first request, and before a new model serves.
            values: single switches by name, such as ``refresh_s=60``; unless None, they override `switches`.

        Raises:
            UnknownTargetError: neither registry nor pools know the target, or, without `fallback`, the alias.
            RegistryUnavailableError: without `fallback`, if the registry is unavailable and there is no local copy.
            ArtefactError: the registered files are damaged, and there is no older copy.
            ConfigError: a switch is unknown or out of its range.
        """
        switches, parsed = (switches or Switches.read()).but(**values), target_or_name(target)
        origin = Origin.of(str(parsed), alias, uri, switches)
        if switches.model == "off":
            known = parse_target(parsed)
            return cls._deploy(Deployment(known, pool_without_model(known)), switches, origin, warm_up)
        try:
            fetched = origin.first_model(switches)
        except (UnknownTargetError, RegistryUnavailableError) as e:
            if isinstance(parsed, str) or not fallback or switches.model == "require":
                raise
            deployment = Deployment(parsed, pool_without_model(parsed, e), why_no_model=f"there is no model: {e}")
            dispatcher = cls._deploy(deployment, switches, origin, warm_up)
            _log.warning("%s: no model, so the pool's default kernel is selected: %s", parsed.name, e)
            return dispatcher
        return cls._deploy(Deployment.of(fetched), switches, origin, warm_up)

    @classmethod
    def from_folder(
        cls, path: str | Path, *, switches: Switches | None = None, warm_up: Iterable[ProblemLike] = ()
    ) -> Self:
        """Load the model in a folder such as ``models/<target>``.

        Raises:
            ArtefactError: the folder holds no valid model; names the file.
        """
        model = load_artefact(Path(path), keep=compiled_folder())
        return cls._deploy(Deployment(model.target, model.pool, model), switches or Switches.read(), None, warm_up)

    @classmethod
    def from_pool(cls, target: str | Target, *, switches: Switches | None = None) -> Self:
        """Select without a model: the fastest measured kernel, or the shipped pool's first that supports the problem.

        Raises:
            UnknownTargetError: no pool is shipped for the target.
        """
        parsed = parse_target(target)
        return cls(parsed, pool_without_model(parsed), None, switches=switches)

    @property
    def target(self) -> Target:
        """The target whose kernels are selected."""
        return self._selector.generation.target

    @property
    def version(self) -> int | None:
        """The model's number in the registry; None for models from elsewhere."""
        return self._selector.generation.version

    @property
    def content_hash(self) -> str | None:
        """Hash of the model's files; None without a model."""
        return self._selector.generation.content_hash

    @property
    def identity(self) -> str:
        """Digest of everything but measurements that decides: target, pool, model and switches."""
        return self._selector.generation.identity

    @property
    def arch(self) -> HardwareProfile:
        """Figures of the hardware: those that the model has learnt with, without one those of ``conf/arch``."""
        return self._selector.generation.arch

    @property
    def kernel_count(self) -> int:
        """Number of kernels in the pool."""
        return len(self._selector.generation.pool)

    @property
    def predictor(self) -> Predictor | None:
        """The model's predictor, also for kernels outside the pool; None without a model."""
        return self._selector.generation.predictor

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The kernels of the pool, the default first."""
        return self._selector.generation.pool.kernels

    def is_supported(self, problem: ProblemLike, kernel: KernelBase | str | None = None) -> bool:
        """Return whether any kernel computes the problem, or whether `kernel` does.

        Raises:
            ProblemError, KernelError: as for :meth:`why_unsupported`.
        """
        if kernel is not None:
            return self.why_unsupported(problem, kernel) is None
        return bool(self._selector.generation.supported(self._selector.parse(problem)).any())

    def why_unsupported(self, problem: ProblemLike, kernel: KernelBase | str) -> str | None:
        """Return why a kernel cannot be selected for the problem, or None if it can.

        Args:
            problem: a problem, or its dimensions.
            kernel: itself, its configuration, its name in any spelling, or CK Tile's instance string, whose parameters
                (such as vector widths) are then checked too.

        Raises:
            ProblemError: the problem is impossible, or of another op.
            KernelError: the pool has no such kernel, or the text is not an instance string.
        """
        return self._selector.generation.why_unsupported(self._selector.parse(problem), kernel)

    def rank(self, problem: ProblemLike, top_k: int | None = None) -> tuple[Selection, ...]:
        """Return the supported kernels, best first by the model alone; ties, or no model, keep the pool's order.

        Args:
            problem: a problem, or its dimensions.
            top_k: largest number of kernels to return; None for all.

        Raises:
            ProblemError: the problem is impossible, or of another op.
            KernelError: no kernel supports it.
            ConfigError: `top_k` is no whole number of 1 or more.
        """
        count = None if top_k is None else checked_count(top_k)
        return self._selector.generation.rank(self._selector.parse(problem), count)

    def select(self, problem: ProblemLike) -> Selection:
        """Return the kernel to launch for a problem; selections are remembered, so that repetitions cost a look-up.

        Raises:
            ProblemError: the problem is impossible, or of another op; `.field` names the dimension.
            KernelError: no kernel supports it.
        """
        generation = self._selector.generation  # read once: a swap during this call changes nothing here
        if type(problem) is dict:
            key = self._key_of(problem)
            try:
                known = generation.fast_by_mapping.young.get(key)
            except TypeError:  # a value is not hashable
                return self._selector.select(generation, self._selector.parse(problem))
            return known or self._selector.select_by_mapping(generation, problem, key)
        try:
            return generation.fast_decisions.young[problem]  # type: ignore[index]
        except (KeyError, TypeError):
            return self._selector.select(generation, self._selector.parse(problem))

    def is_left_to_pytorch(self, problem: Problem, kind: EpilogueKind = EMPTY_KIND) -> bool:
        """Return whether PyTorch's own call is selected and may replace `run`: no shadow or request log watches it.

        Args:
            problem: the problem.
            kind: of the epilogue that the result is to have.

        Raises:
            ProblemError, KernelError: as for :meth:`select`.
        """
        if self._shadow is not None or self._selector.logs_requests:
            return False
        generation, plain = self._selector.generation, self.select(problem)
        return generation.select_with(problem, kind, plain).kernel_name in generation.in_pytorch

    def compare_with_pytorch(self, problem: ProblemLike, kind: EpilogueKind = EMPTY_KIND) -> Comparison:
        """Compare the pick for an epilogue with PyTorch's own call; errors are those of :meth:`rank`."""
        return self._selector.generation.compare_with_pytorch(self._selector.parse(problem), kind)

    def measure(self, problems: Iterable[ProblemLike], top_k: int = 3) -> None:
        """Measure problems on this machine's GPU, unless they were before; from now on the times decide them.

        Args:
            problems: problems, or their dimensions; those without a kernel to compare are left out.
            top_k: the number of kernels of :meth:`rank` to measure beside PyTorch's own calls.

        Raises:
            ProblemError: a problem is impossible, or of another op.
            ConfigError: `top_k` is no whole number of 1 or more, or the switch `model` lets the model alone decide.
            MeasurementError: nothing could be measured, for example because there is no such GPU.
        """
        parsed = [self._selector.parse(problem) for problem in problems]
        self._selector.generation.measure(parsed, checked_count(top_k))

    def explain(self, problem: ProblemLike) -> Explanation:
        """Decide without remembered decisions, and return the reasons as plain data.

        Raises:
            ProblemError, KernelError: as for :meth:`select`.
        """
        from tilewise.dispatch._explain import explain_decision  # not needed to serve

        generation, parsed = self._selector.generation, self._selector.parse(problem)
        start = perf_counter()
        decision = generation.decide(parsed)
        return explain_decision(generation, parsed, decision, perf_counter() - start)

    def run(
        self, problem: ProblemLike, *tensors: torch.Tensor, out: torch.Tensor | None = None,
        epilogue: Epilogue = NO_EPILOGUE,
    ) -> torch.Tensor:  # fmt: skip
        """Launch the selected kernel on the current stream; if it fails, the next in rank is launched.

        Args:
            problem: a problem, or its dimensions.
            tensors: the operands, on one device: PyTorch tensors as :class:`tilewise.dispatch.launching.Launcher`
                describes them, or arrays for CK Tile's kernels (docs/ck-tile-client.md).
            out: tensor for the result; None for a new one.
            epilogue: bias, residual and activation of a forward result, computed before it is rounded.

        Returns:
            `out`, or the new tensor. Autograd records nothing; :mod:`tilewise.torch` has differentiable functions.

        Raises:
            ProblemError: the problem is impossible, or a tensor does not belong to it; `.field` names it.
            KernelError: no kernel supports the problem or could be launched, or the device has another arch.
        """
        return self._runner.run(problem, tensors, out, epilogue)

    def direct(self, problem: Problem, device: int, kind: EpilogueKind = EMPTY_KIND) -> DirectCall | None:
        """Return the launch of the kernel that :meth:`run` used last, for tensors as PyTorch has them, known to fit.

        It checks nothing, and has no next in rank. None before a run with this model, or if a shadow or log watches.
        """
        return self._runner.direct(problem, device, kind)

    def confidence(
        self, problem: ProblemLike, *, tolerance: float = TOLERANCE, level: float = LEVEL
    ) -> Confidence | None:
        """Bound the regret of the model's selection in a millisecond, and say how many of :meth:`rank` to measure.

        Args:
            problem: a problem, or its dimensions.
            tolerance: largest acceptable regret of the best of the top k, in [0, 1).
            level: probability that each statement holds, in (0, 1).

        Returns:
            None without a model, or if the model has no calibration.

        Raises:
            ProblemError: the problem is impossible, or of another op.
            KernelError: no kernel supports it.
            ConfigError: `tolerance` or `level` is out of its range.
        """
        generation, parsed = self._selector.generation, self._selector.parse(problem)
        if (model := generation.model) is None or model.calibration is None:
            return None
        generation.require_kernel(parsed)
        return model.confidence(parsed, model.score(parsed), tolerance=tolerance, level=level)

    trust = confidence  # its earlier name, which programs may still call

    def get_instance_string(self, kernel: KernelBase | str) -> str:
        """Return the canonical name of a kernel, given itself, its configuration, or its name in any spelling.

        Raises:
            KernelError: the pool has no such kernel.
        """
        pool = self._selector.generation.pool
        return pool.names[pool.find(kernel)]

    def export_registry_json(self) -> str:
        """Return the kernels in the JSON of CK Tile's dispatcher; see :func:`tilewise.kernels.registry_json`."""
        from tilewise.kernels import registry_json  # not needed to serve

        generation = self._selector.generation
        return registry_json(self.target, generation.pool, generation.arch.warp_size, generation.content_hash or "")

    def refresh(self) -> bool:
        """Look for a new model in the registry, and swap it in; the shadow's model is refreshed as well.

        Returns:
            Whether a new model serves from now on; without a registry (from a folder or a pool, or by a switch) never.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: no model can be loaded; the current one goes on
                serving.
        """
        return self._refresher.refresh()

    def figures(self) -> Figures:
        """Return counts and states for monitoring."""
        return read_figures(self._selector, self._refresher, self._runner, self._shadow)

    def close(self) -> None:
        """Stop looking for new models, and write the lines that wait for log files. Selecting goes on working."""
        self._refresher.close()
        self._selector.close()
        if self._shadow is not None:
            self._shadow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
