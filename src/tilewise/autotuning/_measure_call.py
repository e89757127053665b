"""Measuring the configurations of a call in this process: interleaved rounds by the rules of ``tilewise collect``.

A configuration that does not compile or raises costs itself only. One that breaks the GPU's context ends the process's
use of that GPU, whoever runs it; ``tilewise collect`` measures in separate processes and survives that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from time import perf_counter

from tilewise.autotuning._call import Call, Hooks
from tilewise.autotuning._call_forms import Argument
from tilewise.autotuning._configurations import Configuration
from tilewise.autotuning._stopwatches import CpuStopwatch, EventStopwatch
from tilewise.collect import Outcome, Samples, Timing, time_in_rounds, timing_shares
from tilewise.errors import ConfigError, one_line

_CPU_TIMING = {"window_us": 1000.0, "budget_ms": 30.0, "max_unroll": 1000}  # the host's clock and scheduler are coarser
DoBench = Callable[..., Argument]  # (call, quantiles=(0.5, 0.2, 0.8)) -> milliseconds, one or three


@dataclass(frozen=True)
class Bench:
    """Settings of the timing of calls.

    Attributes:
        hooks: see :class:`Hooks`.
        do_bench: the user's own benchmark of one call; None for interleaved rounds of all configurations.
        rep_ms: time that the samples of one configuration may take; None for the settings of ``tilewise collect``.
        graphs: whether launches are captured in a CUDA graph, which leaves out the host's time.
        timing_settings: settings of the rounds on a GPU; None for those of ``tilewise collect``.

    Raises:
        ConfigError: `rep_ms` is not positive.
    """

    hooks: Hooks = field(default_factory=Hooks)
    do_bench: DoBench | None = None
    rep_ms: float | None = None
    graphs: bool = False
    timing_settings: Timing | None = None

    def __post_init__(self) -> None:
        if self.rep_ms is not None and not self.rep_ms > 0:
            raise ConfigError(f"rep must be a positive number of milliseconds, got {self.rep_ms}")

    def timing(self, on_gpu: bool) -> Timing:
        """Return the settings of the rounds."""
        values: dict[str, Argument] = {} if on_gpu else dict(_CPU_TIMING)
        if self.rep_ms is not None:
            values["budget_ms"] = self.rep_ms
        if self.hooks:
            values["max_unroll"] = 1  # tensors are reset before every launch
        return replace(self.timing_settings or Timing(), **values)


def measure_call(call: Call, configurations: Sequence[Configuration], bench: Bench) -> dict[str, Outcome]:
    """Run and time a call with each configuration; its tensors end as a first launch expects them.

    Returns:
        The outcome of each configuration, by its name.
    """
    with bench.hooks.measuring(call.named) as copies:
        trials = [_Trial(call, c, bench.hooks, copies) for c in configurations]
        if bench.do_bench is not None:
            return {trial.name: _by_users_bench(trial, bench.do_bench) for trial in trials}
        on_gpu = call.on_gpu
        with _own_stream() if on_gpu and bench.graphs and not bench.hooks else nullcontext():
            failed = {t.name: failure for t in trials if (failure := t.first_run(on_gpu)) is not None}
            running = [t for t in trials if t.name not in failed]
            samples = _time(running, bench, on_gpu) if running else []
    return failed | {t.name: Outcome("ok", None, s) for t, s in zip(running, samples, strict=True)}


def try_call(call: Call, configuration: Configuration, bench: Bench) -> Outcome | None:
    """Run a call once, and wait for its end; return the outcome of a failure, or None."""
    with bench.hooks.measuring(call.named) as copies:
        return _Trial(call, configuration, bench.hooks, copies).first_run(call.on_gpu)


class _Trial:
    """A call with one configuration."""

    def __init__(self, call: Call, configuration: Configuration, hooks: Hooks, copies: Mapping[str, Argument]) -> None:
        self.name = configuration.name
        self._call, self._configuration = call, configuration
        self._hooks, self._copies = hooks, copies
        self._arguments = call.arguments(configuration)

    def before(self) -> None:
        """Prepare a launch."""
        self._hooks.before(self._arguments)

    def launch(self) -> None:
        """Run the call once, as an application would."""
        if self._configuration.pre_hook is not None:
            self._configuration.pre_hook(self._arguments)
        self._call.launch(self._configuration)

    def after(self, error: Exception | None = None) -> None:
        """Clean up after a launch."""
        self._hooks.after(self._arguments, self._copies, error)

    def __call__(self) -> None:
        """Run the call once between its hooks."""
        self.before()
        try:
            self.launch()
        except Exception as e:
            self.after(e)
            raise
        self.after()

    def first_run(self, on_gpu: bool) -> Outcome | None:
        """Compile and run the call; return the outcome of a failure, or None."""
        try:
            self()
            if on_gpu:
                _synchronize()
        except Exception as e:  # any exception is the configuration's own
            compiling = type(e).__module__.startswith("triton")
            return Outcome("compile_error" if compiling else "runtime_error", one_line(e))
        return None


def _time(trials: Sequence[_Trial], bench: Bench, on_gpu: bool) -> list[Samples]:
    timing = bench.timing(on_gpu)
    estimates = [_estimate(trial, on_gpu) for trial in trials]
    shares = timing_shares(estimates, [True] * len(trials), timing)
    works = [(trial, share.unrolled) for trial, share in zip(trials, shares, strict=True)]
    if not on_gpu:
        return time_in_rounds(estimates, shares, CpuStopwatch(works), timing)
    if not bench.graphs or bench.hooks:
        return time_in_rounds(estimates, shares, EventStopwatch(works), timing)
    from tilewise.collect.engines import GraphStopwatch, L2Cache, capture_graph

    graphs = {i: capture_graph(trial.launch, n) for i, (trial, n) in enumerate(works) if shares[i].rounds}
    return time_in_rounds(estimates, shares, GraphStopwatch(graphs, L2Cache(), _uuid()), timing)


def _estimate(trial: _Trial, on_gpu: bool) -> float:
    """Return the milliseconds of one run."""
    start = perf_counter()
    trial()
    if on_gpu:
        _synchronize()
    return (perf_counter() - start) * 1e3


def _by_users_bench(trial: _Trial, do_bench: DoBench) -> Outcome:
    """Return the outcome of the user's benchmark; its quantiles count as samples."""
    try:
        result = do_bench(trial, quantiles=(0.5, 0.2, 0.8))
        times = tuple(float(t) for t in (result if isinstance(result, Iterable) else (result,)))
    except Exception as e:  # any exception is the configuration's own
        return Outcome("runtime_error", one_line(e))
    if times and all(isfinite(t) and t > 0 for t in times):
        return Outcome("ok", None, Samples(times, (), 1))
    return Outcome("runtime_error", f"do_bench gave {result!r:.100}, no positive numbers")


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def _uuid() -> str:
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def _own_stream() -> AbstractContextManager[object]:
    """Return a context with a stream of its own, as graphs are not captured on the default one."""
    import torch

    torch.cuda.synchronize()  # the operands' last writes
    return partial(torch.cuda.stream, torch.cuda.Stream())()  # type: ignore[no-any-return]
