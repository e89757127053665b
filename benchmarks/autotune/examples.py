"""The tuned kernels of ``examples/autotune``, with keys drawn like a user's.

Imported by the other scripts of this folder; it has no command of its own.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "autotune"
KERNELS = {
    "matmul": "matmul_kernel",
    "softmax": "softmax_kernel",
    "layer_norm": "layer_norm_kernel",
    "attention": "attention_kernel",
    "fused_moe": "fused_moe_kernel",
}
TRAIN, TEST = 300, 100  # keys to learn from, and unseen ones
Key = dict[str, int]


def load(example: str) -> ModuleType:
    """Import an example from its file."""
    if example not in sys.modules:
        spec = importlib.util.spec_from_file_location(example, FOLDER / f"{example}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[example] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[example])
    return sys.modules[example]


def kernel_of(example: str) -> Any:
    """Return the tuned kernel of an example."""
    return getattr(load(example), KERNELS[example])


def drawn_keys(example: str) -> tuple[list[Key], list[Key]]:
    """Return the keys to learn from and the unseen ones, all different; the same in every process."""
    source, found = random.Random(example), list[Key]()
    while len(found) < TRAIN + TEST:
        key = load(example).draw_key(source)
        if key not in found:
            found.append(key)
    return found[:TRAIN], found[TRAIN:]


def compile_ahead(example: str, keys: Sequence[Key], processes: int) -> None:
    """Compile every configuration for these keys in parallel; Triton keeps the binaries on disk."""
    kernel = kernel_of(example)
    chosen = {_specialisation(kernel, key): key for key in sorted(keys, key=_volume, reverse=True)}
    tasks = [(example, key, i) for key in chosen.values() for i in range(len(kernel.configurations))]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, tasks, chunksize=2))


def _compile(task: tuple[str, Key, int]) -> None:
    example, key, number = task
    kernel = kernel_of(example)
    arguments, keywords = load(example).inputs(**key)
    try:
        kernel.fn.warmup(*arguments, **keywords, **kernel.configurations[number].arguments)
    except Exception as e:  # counted by the measurement
        print(f"{example} {kernel.configurations[number].name}: {type(e).__name__}", flush=True)


def _specialisation(kernel: Any, key: Key) -> tuple[object, ...]:
    """Return the part of a key that decides which binary runs: constants, and divisibility of the rest."""
    constants = {name for name, kind in kernel.base_fn.__annotations__.items() if "constexpr" in str(kind)}
    return tuple(value if name in constants else (value == 1, value % 16 == 0) for name, value in key.items())


def _volume(key: Key) -> int:
    volume = 1
    for value in key.values():
        volume *= max(value, 1)
    return volume


def interleaved(first: Sequence[Key], second: Sequence[Key]) -> Iterator[tuple[str, Key]]:
    """Yield (set, key) so that a run that ends early has its share of both sets."""
    every = max(1, len(first) // max(1, len(second)))
    rest = iter(second)
    for number, key in enumerate(first):
        yield "train", key
        if number % every == every - 1 and (other := next(rest, None)) is not None:
            yield "test", other
    yield from (("test", key) for key in rest)
