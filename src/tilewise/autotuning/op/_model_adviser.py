"""The model of a tuned kernel: from a folder, or from the registry, checked against the kernel as it is now."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewise.autotuning._chooser import Advice
from tilewise.autotuning.op._kernel_op import KernelOp
from tilewise.autotuning.records import TunedKey
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import MissingExtraError, RegistryUnavailableError, TilewiseError, UnknownTargetError, UsageError
from tilewise.ops import Target

MODELS = "TILEWISE_MODELS"  # folder of model folders, by target's name; asked before the registry
_UNSURE = 1 << 16  # as many as allowed
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelAdviser:
    """A model that ranks a kernel's configurations.

    Attributes:
        op: the kernel's op.
        dispatcher: ranks.
        configurations: the name of each configuration, by ``kernel_name``.
        same_code: whether the model was learnt from the kernel's present code. Otherwise its first configurations are
            measured before one is trusted.
    """

    op: KernelOp
    dispatcher: Dispatcher
    configurations: Mapping[str, str]
    same_code: bool

    def advise(self, key: TunedKey, *, quickly: bool = False) -> Advice | None:
        """Return the model's opinion of a key; None if it knows none of the configurations, or the key is impossible.

        Args:
            key: the key.
            quickly: whether to leave out the bound on the loss, which takes most of the time.
        """
        try:
            problem = self.op.problem(key)
            ranked = self.dispatcher.rank(problem, 1 if quickly and self.same_code else None)
        except UsageError as e:
            _log.info("%s: %s: the model gives no answer: %s", self.op.definition.name, key, e)
            return None
        known = [self.configurations[s.kernel_name] for s in ranked if s.kernel_name in self.configurations]
        if not known:
            return None
        if not self.same_code:
            return Advice(known, _UNSURE)
        confidence = None if quickly else self.dispatcher.confidence(problem)
        return Advice(known, 1 if confidence is None else confidence.k or _UNSURE)


def load_adviser(op: KernelOp, target: Target, model: str, warn: Callable[[str], None]) -> ModelAdviser | None:
    """Load the model of a target; None, with a warning where it matters, if no model can be used.

    Args:
        op: the kernel's op.
        target: of the model.
        model: a folder of a model or of model folders, or an alias of the registry.
        warn: takes the warning.
    """
    try:
        dispatcher = _open(target, model)
    except (UnknownTargetError, RegistryUnavailableError, MissingExtraError) as e:
        _log.info("%s: no model, so new keys are measured: %s", target.name, e)
        return None
    except TilewiseError as e:
        warn(f"the model cannot be used, so new keys are measured: {e}")
        return None
    learnt = None if dispatcher.predictor is None else dispatcher.predictor.model.features.definition
    same = learnt is not None and learnt.source == op.definition.source
    if not same:
        warn(
            "the model was learnt from another version of this kernel's code, so its first configurations are "
            "measured; collect and train again"
        )
    configurations = op.configurations_of(target)
    known = {kernel.name(target.op, target.variant, target.dtype) for kernel in dispatcher.kernels}
    missing = [name for kernel, name in configurations.items() if kernel not in known]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        warn(f"the model does not know the configuration {missing[0]}{more}; collect and train again to use it")
    return ModelAdviser(op, dispatcher, configurations, same)


def _open(target: Target, model: str) -> Dispatcher:
    """Load a target's model.

    Raises:
        TilewiseError: the model is missing or damaged.
    """
    switches = Switches.read(measure="off", decisions=2)  # decisions and measurements are kept per kernel
    for folder in (os.environ.get(MODELS, ""), model):
        if folder and (path := Path(folder, target.name)).is_dir():
            return Dispatcher.from_folder(path, switches=switches)
    if Path(model, "feature_spec.json").is_file():
        return Dispatcher.from_folder(model, switches=switches)
    if os.sep in model:
        raise UnknownTargetError(f"{model}: holds no model of {target.name}")
    return Dispatcher.from_registry(target, model, fallback=False, switches=switches)
