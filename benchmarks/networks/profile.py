"""Print the GPU's kernels of a network's pass, by PyTorch and with the layers that tilewise replaces.

    python3 -m benchmarks.networks.profile --models FOLDER --networks NAME ... [--batches 16] [--rows 15] [--host]

Needs a GPU, torchvision and transformers. It tells where the time of a cell of ``compare.py`` goes: for each side the
kernels that take longest, with their calls and microseconds in a pass, and for our side the predicted times by layer.
With `--host` the layers are chosen for eager calls, and the Python functions that take longest are printed instead.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import tilewise.torch as tw
from benchmarks.networks.zoo import NETWORKS, prepare
from tilewise.dispatch import Dispatcher
from tilewise.markdown import table

_PASSES, _HOST_PASSES = 5, 20
_NAME_LENGTH = 90


def kernels(model: nn.Module, x: Tensor) -> list[tuple[str, float, float]]:
    """Return (name, calls, microseconds) of each kernel of a pass, the longest first."""
    with torch.no_grad():
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
            for _ in range(_PASSES):
                model(x)
            torch.cuda.synchronize()
    rows = [
        (event.key, event.count / _PASSES, event.self_device_time_total / _PASSES)
        for event in found.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return sorted(rows, key=lambda row: -row[2])


def functions(model: nn.Module, x: Tensor, rows: int) -> str:
    """Return the milliseconds of the host in a pass, and the functions in which it spends them."""
    with torch.no_grad():
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_HOST_PASSES):
            model(x)
        ms = (time.perf_counter() - start) * 1e3 / _HOST_PASSES
        torch.cuda.synchronize()
        with cProfile.Profile() as found:
            for _ in range(_HOST_PASSES):
                model(x)
        torch.cuda.synchronize()
    text = io.StringIO()
    pstats.Stats(found, stream=text).sort_stats("tottime").print_stats(rows)
    return f"{ms:.2f} ms of the host in a pass; of {_HOST_PASSES} passes:\n{text.getvalue()}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with a model's folder for each target")
    parser.add_argument("--networks", nargs="+", required=True, choices=list(NETWORKS))
    parser.add_argument("--batches", type=int, nargs="+", default=[16])
    parser.add_argument("--rows", type=int, default=15, help="kernels or functions of each side")
    parser.add_argument("--host", action="store_true", help="choose for eager calls, and show the host's functions")
    args = parser.parse_args(argv)
    torch.backends.cudnn.benchmark = True
    folders = sorted(path for path in args.models.iterdir() if path.is_dir())
    with tw.use(*map(Dispatcher.from_folder, folders)):
        for name in args.networks:
            for batch in args.batches:
                model, x = prepare(NETWORKS[name], batch, torch.bfloat16, "cuda")
                ours, report = tw.optimize(model, x, launch="eager" if args.host else "graph")
                for side, network in (("PyTorch", model), ("tilewise", ours)):
                    if args.host:
                        print(f"\n{name}, batch {batch}, {side}: {functions(network, x, args.rows)}")
                        continue
                    rows = kernels(network, x)
                    print(f"\n{name}, batch {batch}, {side}: {sum(row[2] for row in rows):.0f} us\n")
                    lines = [[key[:_NAME_LENGTH], f"{n:g}", f"{us:.1f}"] for key, n, us in rows[: args.rows]]
                    print(table(["kernel", "calls", "us"], lines))
                print(f"\n{report}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
