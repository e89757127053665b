"""Time calls on a GPU: remembered ones beside plain launches and ``triton.autotune``, and first calls of unseen keys.

PYTHONPATH=src:. python -m benchmarks.autotune.serve OUT_FILE [MODELS_FOLDER [EXAMPLE ...]]

Without models only remembered calls are timed. A first call counts from the call to the finished result, with all
binaries on disk; ``triton.autotune`` gets the same configurations and the first few of the same keys. All examples take
about two minutes on one H200 with 16 cores.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.autotune.examples import KERNELS, Key, compile_ahead, drawn_keys, kernel_of, load
from benchmarks.results import machine, save
from benchmarks.runtime.run_overhead import host_us

CALLS, REPEATS = 200, 25
BUSY_CYCLES = 400_000  # per call: longer than the host takes for it
TRITON_KEYS = 2  # of the unseen keys, as each takes seconds


def overhead(example: str, key: Key) -> dict[str, float]:
    """Return the host's microseconds of a remembered call, a plain launch and a call of ``triton.autotune``."""
    kernel, (arguments, keywords) = kernel_of(example), load(example).inputs(**key)
    rival = triton.autotune(configs=kernel.configs, key=kernel.keys)(kernel.fn)
    grid = keywords["grid"]
    kernel[grid](*arguments)
    chosen = kernel.choose(*arguments, grid=grid).configuration.arguments
    begun = time.perf_counter()
    rival[grid](*arguments)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - begun
    works: dict[str, Callable[[], object]] = {
        "plain_us": lambda: kernel.fn[grid](*arguments, **chosen),
        "tilewise_us": lambda: kernel[grid](*arguments),
        "triton_us": lambda: rival[grid](*arguments),
    }
    busy = partial(torch.cuda._sleep, CALLS * BUSY_CYCLES)
    return {**host_us(works, CALLS, REPEATS, busy, torch.cuda.synchronize), "triton_first_ms": elapsed * 1e3}


def first_calls(example: str, keys: Sequence[Key], call: Callable[..., object]) -> list[float]:
    """Return the milliseconds from each key's first call to its result."""
    times = []
    for key in keys:
        arguments, keywords = load(example).inputs(**key)
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(*arguments, **keywords)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def choices(example: str, keys: Sequence[Key]) -> list[float]:
    """Return the microseconds of each key's choice, without the launch; the model is loaded."""
    kernel, times = kernel_of(example), []
    for key in keys:
        call = kernel.call_for(**key)
        start = time.perf_counter()
        kernel.choose_for(call)
        times.append((time.perf_counter() - start) * 1e6)
    return times


def serve(example: str, has_model: bool) -> dict[str, Any]:
    """Return the figures of one example."""
    kernel, (train, test) = kernel_of(example), drawn_keys(example)
    compile_ahead(example, [*train, *test], min(16, os.cpu_count() or 1))
    found: dict[str, Any] = {"example": example, "configurations": len(kernel.configurations)}
    if has_model:
        first_calls(example, train[:3], kernel.run)  # loads the model
        times = first_calls(example, test, kernel.run)
        rival = triton.autotune(configs=kernel.configs, key=kernel.keys)(kernel.fn)
        slow = first_calls(example, test[:TRITON_KEYS], _runner(rival))
        measured = sum(kernel.choose_for(kernel.call_for(**key)).why != "model" for key in test)
        found |= {
            "unseen_keys": len(times),
            "first_total_s": sum(times) / 1e3,
            "first_median_ms": statistics.median(times),
            "triton_first_mean_ms": statistics.mean(slow),
            "times_faster": statistics.mean(slow) / statistics.mean(times),
            "choice_median_us": statistics.median(choices(example, test)),
            "not_by_model": measured,
        }
    return found | overhead(example, test[0])


def _runner(rival: Any) -> Callable[..., object]:
    return lambda *arguments, grid: rival[grid](*arguments)


def main(out: str, models: str = "", *examples: str) -> None:
    """Time the named examples, or all, and write the result."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TILEWISE_CACHE"] = cache
        if models:
            os.environ["TILEWISE_MODELS"] = models
        cases = []
        for example in examples or KERNELS:
            cases.append(serve(example, bool(models)))
            print(cases[-1], flush=True)
    save(Path(out), {"benchmark": "autotune_serve", "machine": machine(), "cases": cases})


if __name__ == "__main__":
    main(*sys.argv[1:])
