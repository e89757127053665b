"""The decorator: ``triton.autotune``'s arguments, and those that make a kernel an op of tilewise."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewise.autotuning._call import Hooks
from tilewise.autotuning._call_forms import Argument
from tilewise.autotuning._chooser import Chooser, Measure, Policy
from tilewise.autotuning._configurations import configurations_of
from tilewise.autotuning._measure_call import Bench, DoBench
from tilewise.autotuning._pruning import Pruning
from tilewise.autotuning._triton_tunable import TritonTunable, is_triton_kernel
from tilewise.autotuning._tunable import Tunable
from tilewise.autotuning.op import Statements
from tilewise.checks import require


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
    *,
    name: str | None = None,
    model: str | None = "production",
    measure: Measure = "call",
    top: int = 8,
    wait: bool = True,
    version: str = "",
    flops: str = "",
    bytes: str = "",
    programs: str = "",
    supports: str = "",
    features: Mapping[str, str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[Argument], Argument]:
    """Choose the configuration of each call of a function, as a decorator.

    The arguments up to `cache_results` are those of ``triton.autotune``, with the same meaning. The decorated function
    is a Triton kernel, launched as ``kernel[grid](...)``, or any callable, which gets the values of a configuration as
    keyword arguments.

    Args:
        configs: ``triton.Config`` objects, or mappings from parameters to values; the first is the default.
        key: parameters whose values decide which configuration is fastest, besides the tensors' element types.
        prune_configs_by: functions that leave out configurations: ``early_config_prune``, ``perf_model``, ``top_k``.
        reset_to_zero: parameters whose tensors are filled with zero before each launch of a measurement.
        restore_value: parameters whose tensors get their values back after each launch of a measurement.
        pre_hook: called before each launch of a measurement; replaces `reset_to_zero`.
        post_hook: called after each launch of a measurement; replaces `restore_value`.
        warmup: accepted and unused: every configuration runs twice before it is timed.
        rep: milliseconds that the samples of one configuration may take; None for the settings of ``tilewise collect``.
        use_cuda_graph: whether launches are timed in a CUDA graph; None: those of Triton kernels without hooks.
        do_bench: benchmark of one call, ``do_bench(call, quantiles=(0.5, 0.2, 0.8))``, in milliseconds.
        cache_results: whether measurements are kept on disk.
        name: of the kernel in caches, tables and models; None for the function's.
        model: an alias of the registry, a model's folder, or a folder of such folders; None for no model. The folder
            that ``TILEWISE_MODELS`` names comes first.
        measure: ``call``: a new key is measured in its first call; ``aside``: by another thread with arguments made by
            :meth:`Tunable.inputs`, while the model's choice or the first configuration serves; ``never``: the model
            decides, or the first configuration.
        top: most configurations to measure where a model is unsure.
        wait: whether to wait while another process measures the same key, instead of taking the default meanwhile.
        version: further text that measurements depend on, e.g. the version of a library.
        flops: expression of the key's FLOPs, such as ``2*M*N*K``, for a model; see :class:`tilewise.ops.OpDefinition`.
        bytes: expression of the fewest bytes to move.
        programs: expression of the programs (blocks) of a launch, with the configuration's values.
        supports: condition that key and configuration must meet, e.g. ``BLOCK_K <= K``.
        features: further expressions that a model learns from, by name.
        categories: the values of each key that is a text.

    Raises:
        UsageError: an argument breaks a rule; see :class:`Policy`, :class:`Pruning` and :func:`configurations_of`.
    """
    if warmup is not None:
        warnings.warn("warmup is not used: every configuration runs twice before it is timed", stacklevel=2)
    hooks = Hooks(tuple(reset_to_zero or ()), tuple(restore_value or ()), pre_hook, post_hook)
    pruning, policy = Pruning.of(prune_configs_by), Policy(measure, top, wait, cache_results)
    configurations = configurations_of(configs)
    stated = Statements(flops, bytes, programs, supports, dict(features or {}), dict(categories or {}))

    def decorate(function: Argument) -> Argument:
        is_triton = is_triton_kernel(function)
        graphs = is_triton if use_cuda_graph is None else use_cuda_graph
        chooser = Chooser(
            _checked_name(name, function),
            lambda: tuned.code,
            configurations,
            pruning,
            Bench(hooks, do_bench, rep, graphs),
            policy,
            version,
        )
        tuned = (TritonTunable if is_triton else Tunable)(function, key, chooser, stated, model)
        return tuned

    return decorate


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
