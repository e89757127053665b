"""The decorator: ``triton.autotune``'s arguments, and those that make a kernel an op of tilewise."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TypedDict, Unpack

from tilewise.autotuning._call import Hooks
from tilewise.autotuning._call_forms import Argument
from tilewise.autotuning._chooser import Chooser, Measure, Policy
from tilewise.autotuning._configurations import Configuration, configurations_of
from tilewise.autotuning._measure_call import Bench, DoBench
from tilewise.autotuning._pruning import Pruning
from tilewise.autotuning._triton_tunable import TritonTunable, is_triton_kernel
from tilewise.autotuning._tunable import Tunable
from tilewise.autotuning.op import Statements
from tilewise.checks import require


class OwnOptions(TypedDict, total=False):
    """Arguments of :func:`autotune` that ``triton.autotune`` lacks.

    Attributes:
        name: of the kernel in caches, tables and models; without it the function's.
        model: an alias of the registry, a model's folder, or a folder of such folders; None for no model;
            ``production`` by default. The folder that ``TILEWISE_MODELS`` names comes first.
        measure: ``call`` (the default): a new key is measured in its first call; ``aside``: by another thread with
            arguments made by :meth:`Tunable.inputs`, while the model's choice or the first configuration serves;
            ``never``: the model decides, or the first configuration.
        top: most configurations to measure where a model is unsure; 8 by default.
        wait: whether to wait (the default) while another process measures the same key, instead of taking the first
            configuration meanwhile.
        version: further text that measurements depend on, e.g. the version of a library.
        flops: expression of the key's FLOPs, such as ``2*M*N*K``, for a model; see :class:`tilewise.ops.OpDefinition`.
        bytes: expression of the fewest bytes to move.
        programs: expression of the programs (blocks) of a launch, with the configuration's values.
        supports: condition that key and configuration must meet, e.g. ``BLOCK_K <= K``.
        features: further expressions that a model learns from, by name.
        categories: the values of each key that is a text.
    """

    name: str
    model: str | None
    measure: Measure
    top: int
    wait: bool
    version: str
    flops: str
    bytes: str
    programs: str
    supports: str
    features: Mapping[str, str]
    categories: Mapping[str, Sequence[str]]


_STATEMENTS = [field.name for field in fields(Statements)]
_POLICY = [field.name for field in fields(Policy)]


def autotune(
    configs: Iterable[object],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Argument] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., object] | None = None,
    post_hook: Callable[..., object] | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool | None = None,
    do_bench: DoBench | None = None,
    cache_results: bool = True,
    **own: Unpack[OwnOptions],
) -> Callable[[Argument], Argument]:
    """Choose the configuration of each call of a function, as a decorator with the arguments of ``triton.autotune``.

    The decorated function is a Triton kernel, launched as ``kernel[grid](...)``, or any callable, which gets the values
    of a configuration as keyword arguments.

    Args:
        configs: ``triton.Config`` objects, or mappings from parameters to values; the first is the default.
        key: parameters whose values decide which configuration is fastest, besides the tensors' element types.
        prune_configs_by: functions that leave out configurations; see :class:`Pruning`.
        reset_to_zero: parameters whose tensors are zeroed before each launch of a measurement.
        restore_value: parameters whose tensors get their values back after each such launch.
        pre_hook: called before each such launch, in place of `reset_to_zero`.
        post_hook: called after each such launch, in place of `restore_value`.
        warmup: accepted and unused: every configuration runs twice before it is timed.
        rep: milliseconds for the samples of one configuration.
        do_bench: benchmark of one call, ``do_bench(call, quantiles=(0.5, 0.2, 0.8))``, in milliseconds.
        use_cuda_graph: whether launches are timed in a CUDA graph; None: those of Triton kernels without hooks.
        cache_results: whether measurements are kept on disk.
        own: see :class:`OwnOptions`.

    Raises:
        UsageError: an argument breaks a rule.
    """
    if warmup is not None:
        warnings.warn("warmup is not used: every configuration runs twice before it is timed", stacklevel=2)
    hooks = Hooks(tuple(reset_to_zero or ()), tuple(restore_value or ()), pre_hook, post_hook)
    bench = Bench(hooks, do_bench, rep, bool(use_cuda_graph))
    settings = _Settings(configurations_of(configs), tuple(key), Pruning.of(prune_configs_by), bench, use_cuda_graph)
    return partial(_tuned, settings, {"keep": cache_results, **own})


@dataclass(frozen=True)
class _Settings:
    """Arguments of :func:`autotune` in checked form; `graphs` None: the function decides."""

    configurations: tuple[Configuration, ...]
    key: tuple[str, ...]
    pruning: Pruning
    bench: Bench
    graphs: bool | None


def _tuned(settings: _Settings, options: Mapping[str, Argument], function: Argument) -> Tunable:
    unknown = options.keys() - {*OwnOptions.__annotations__, "keep"}
    require(
        f"an argument must be one of triton.autotune or {', '.join(OwnOptions.__annotations__)}", not unknown, unknown
    )
    policy = Policy(**{name: options[name] for name in _POLICY if name in options})
    stated = Statements(**{name: options[name] for name in _STATEMENTS if name in options})
    is_triton = is_triton_kernel(function)
    chooser = Chooser(
        _checked_name(options.get("name"), function),
        lambda: tuned.code,
        settings.configurations,
        settings.pruning,
        replace(settings.bench, graphs=is_triton if settings.graphs is None else settings.graphs),
        policy,
        options.get("version", ""),
    )
    kind = TritonTunable if is_triton else Tunable
    tuned = kind(function, settings.key, chooser, stated, options.get("model", "production"))
    return tuned


def _checked_name(name: str | None, function: object) -> str:
    """Return the stated name, or one that is made of the function's: of ``_fwd_kernel``, ``fwd_kernel``.

    Raises:
        ConfigError: the stated name has other characters than lower-case letters, digits and ``_``.
    """
    if name is None:
        while not hasattr(function, "__name__") and hasattr(function, "fn"):
            function = function.fn
        words = re.findall(r"[a-z0-9]+", str(getattr(function, "__name__", type(function).__name__)).lower())
        name = "_".join(words) or "kernel"
    require(
        "name must be a lower-case letter, then up to 47 lower-case letters, digits and _",
        re.fullmatch("[a-z][a-z0-9_]{0,47}", name) is not None,
        name,
    )
    return name
