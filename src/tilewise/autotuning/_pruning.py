"""Pruning of configurations before they are measured, by the functions that ``triton.autotune`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewise.autotuning._call import Call
from tilewise.autotuning._call_forms import Argument
from tilewise.autotuning._configurations import Configuration
from tilewise.errors import ConfigError, KernelError

_KEYS = ("early_config_prune", "perf_model", "top_k")


@dataclass(frozen=True)
class Pruning:
    """Functions that leave out configurations.

    Attributes:
        early_config_prune: (configs, positional arguments by name, **keyword arguments) -> the configs to keep.
        perf_model: (**arguments, **configuration) -> estimated time; only the `top_k` best are kept.
        top_k: a number of configurations, or a share of all as a float up to 1.
    """

    early_config_prune: Callable[..., Sequence[object]] | None = None
    perf_model: Callable[..., Argument] | None = None
    top_k: int | float = 1.0

    @classmethod
    def of(cls, given: Mapping[str, Argument] | None) -> Pruning:
        """Return the functions of ``prune_configs_by``.

        Raises:
            ConfigError: a key is unknown, or `top_k` is neither a whole number nor a share.
        """
        unknown = [key for key in given or {} if key not in _KEYS]
        if unknown:
            raise ConfigError(f"prune_configs_by: unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
        pruning = cls(**(given or {}))
        share = isinstance(pruning.top_k, float) and 0 < pruning.top_k <= 1
        if not share and not (isinstance(pruning.top_k, int) and pruning.top_k >= 1):
            raise ConfigError(f"top_k must be a whole number of 1 or more, or a share up to 1.0, got {pruning.top_k!r}")
        return pruning

    def candidates(self, configurations: Sequence[Configuration], call: Call) -> Sequence[Configuration]:
        """Return the configurations that are left for a call, at least one.

        Raises:
            KernelError: `early_config_prune` keeps none of them.
        """
        left = configurations
        if self.early_config_prune is not None:
            given = [c.given for c in configurations]
            kept = self.early_config_prune(given, dict(call.positional), **call.keywords)
            left = [c for c in configurations if any(c.given is k or c.given == k for k in kept)]
            if not left:
                raise KernelError("early_config_prune must keep at least one of the configurations, it kept none")
        if self.perf_model is None:
            return left
        count = self.top_k if isinstance(self.top_k, int) else max(1, int(len(configurations) * self.top_k))
        model, known = self.perf_model, {**call.positional, **call.keywords}
        return sorted(left, key=lambda c: model(**known, **c.arguments))[:count] if len(left) > count else left
