"""Latency of a selection in C, and agreement with Python: python -m benchmarks.runtime.capi_latency MODEL [MODEL ...].

Each problem of the op's first set is requested once, in order, first from the C library and then from the compiled core
through Python, in the same process. A call of the C library by ctypes takes about a microsecond longer than one from C.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from tilewise.capi import build, export_model
from tilewise.collect.problems import gemm_1, grouped_conv_1
from tilewise.model import load_artefact
from tilewise.ops import Problem

NAME_BYTES = 256


def c_bytes(problem: Problem) -> bytes:
    """Return a `tilewise_problem` of include/tilewise.h as bytes."""
    values = list(problem.to_dict().values())
    if problem.op == "gemm":
        return struct.pack("<IIqqq8s120x", 160, 1, *values[:3], values[3].encode())
    return struct.pack("<II19q", 160, 2, *values)


def times_us(ask: Callable[[Any], Any], questions: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Return the answers, and the microseconds of each."""
    answers, taken = [], []
    for question in questions:
        begun = perf_counter_ns()
        answer = ask(question)
        taken.append((perf_counter_ns() - begun) / 1e3)
        answers.append(answer)
    return answers, taken


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of one model."""
    model, library = load_artefact(folder), ctypes.CDLL(str(build()))
    problems = [item.problem for item in (gemm_1() if model.target.op == "gemm" else grouped_conv_1())]
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(NAME_BYTES)
    library.tilewise_select_kernel.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.tilewise_close.argtypes = [ctypes.c_void_p]
    with tempfile.NamedTemporaryFile(suffix=".twm") as file:
        export_model(model, file.name)
        size = Path(file.name).stat().st_size
        if library.tilewise_open(file.name.encode(), ctypes.byref(handle)):
            raise SystemExit(f"{folder}: the C library cannot load the exported model")

    def select(problem: bytes) -> str | None:
        failed = library.tilewise_select_kernel(handle, problem, name, NAME_BYTES)
        return None if failed else name.value.decode()

    picked, taken = times_us(select, [c_bytes(p) for p in problems])
    best, from_python = times_us(lambda p: model.best(p, 1)[0], problems)
    library.tilewise_close(handle)
    same = sum(c == (model.pool.names[b[0]] if len(b) else None) for c, b in zip(picked, best, strict=True))
    return {
        "target": model.target.name, "kernels": len(model.pool), "trees": model.scores.n_trees, "file_bytes": size,
        "p50_us": round(float(np.median(taken)), 1), "p10_us": round(float(np.quantile(taken, 0.1)), 1),
        "p99_us": round(float(np.quantile(taken, 0.99)), 1), "python_p50_us": round(float(np.median(from_python)), 1),
        "problems": len(problems), "same_winner": same,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", type=Path, nargs="+", help="model folders")
    print(json.dumps([measure(folder) for folder in parser.parse_args().models], indent=1))


if __name__ == "__main__":
    main()
