"""The first pass of a network in a process, with the layers that tilewise replaces, and with PyTorch alone.

    python3 -m benchmarks.networks.first_pass --models FOLDER [--networks NAME ...] [--batch 16] [--json FILE]

Needs a GPU, torchvision and transformers. Each figure comes from a process of its own. PyTorch's side searches cuDNN's
algorithms in its first pass (benchmark mode). Ours decides (``optimize``), then makes its first pass: once with an
empty Triton cache, which compiles, and once with the programs at hand, as after ``tilewise compile``. Before the clock
starts, models and libraries are loaded, and the device is used once; a process before all others, which does not count,
leaves their files in memory. The ratio is ours with programs at hand / PyTorch's, ``optimize`` included: below 1 where
tilewise is ready first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tilewise.torch as tw
from benchmarks.networks.zoo import NETWORKS, prepare
from benchmarks.results import machine, save
from tilewise.dispatch import Dispatcher
from tilewise.errors import MeasurementError
from tilewise.markdown import table

SIDES = ("pytorch", "tilewise")
_LIMIT_S = 300  # for a process


def first_pass(side: str, name: str, batch: int, models: Path) -> dict[str, float]:
    """Return the seconds until a side's first result, measured in this process: to be called once."""
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = prepare(NETWORKS[name], batch, torch.bfloat16, device)
    dispatchers = [Dispatcher.from_folder(path) for path in sorted(models.iterdir()) if path.is_dir()]
    seconds: dict[str, float] = {}
    with tw.use(*dispatchers), torch.no_grad():
        _use_libraries(device)
        start = time.perf_counter()
        if side == "tilewise":
            model = tw.optimize(model, x, inplace=True, launch="graph").model
            seconds["optimize_s"] = time.perf_counter() - start
        model(x)
        if device == "cuda":
            torch.cuda.synchronize()
    return {**seconds, "total_s": time.perf_counter() - start}


def _use_libraries(device: str) -> None:
    """Load cuDNN and cuBLAS, and wait until the device is idle."""
    x = torch.randn(1, 8, 8, 8, device=device, dtype=torch.bfloat16)
    torch.nn.functional.conv2d(x, x)
    torch.mm(x[0, 0], x[0, 0])
    if device == "cuda":
        torch.cuda.synchronize()


def cell(name: str, batch: int, models: Path) -> dict[str, Any]:
    """Return the figures of one network and batch size, each from a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        pytorch = _in_process("pytorch", name, batch, models, cache)
        compiling = _in_process("tilewise", name, batch, models, cache)
        at_hand = _in_process("tilewise", name, batch, models, cache)
    return {
        "network": name,
        "batch": batch,
        "pytorch_s": pytorch["total_s"],
        "compiling_s": compiling["total_s"],
        "tilewise_s": at_hand["total_s"],
        "optimize_s": at_hand["optimize_s"],
        "ratio": at_hand["total_s"] / pytorch["total_s"],
    }


def _in_process(side: str, name: str, batch: int, models: Path, cache: str) -> dict[str, float]:
    """Return the figures of a new process that keeps its compiled programs in `cache`."""
    command = [sys.executable, "-m", "benchmarks.networks.first_pass", "--models", str(models), "--batch", str(batch)]
    done = subprocess.run(
        [*command, "--networks", name, "--side", side], env={**os.environ, "TRITON_CACHE_DIR": cache},
        capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MeasurementError(f"{name}, batch {batch}, {side}: the process ended with {done.returncode}: {reason}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def text(result: Mapping[str, Any]) -> str:
    """Return the table of a result."""
    header = ("network", "batch", "PyTorch, s", "tilewise, s", "of it optimize", "compiling, s", "ratio")
    rows = []
    for c in result["cells"]:
        seconds = (c["pytorch_s"], c["tilewise_s"], c["optimize_s"], c["compiling_s"])
        rows.append([c["network"], str(c["batch"]), *(f"{s:.2f}" for s in seconds), f"{c['ratio']:.2f}"])
    return table(header, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with a model's folder for each target")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/first_pass.json"))
    parser.add_argument("--side", choices=SIDES, help="measure this side of one network in this process")
    args = parser.parse_args(argv)
    if args.side:
        print(json.dumps(first_pass(args.side, args.networks[0], args.batch, args.models)))
        return 0
    result: dict[str, Any] = {"benchmark": "first_pass", "machine": machine(), "cells": []}
    with tempfile.TemporaryDirectory() as cache:
        _in_process("pytorch", args.networks[0], args.batch, args.models, cache)
    for name in args.networks:
        result["cells"].append(cell(name, args.batch, args.models))
        print(result["cells"][-1], file=sys.stderr, flush=True)
        save(args.json, result)
    print(text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
