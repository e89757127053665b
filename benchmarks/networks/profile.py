"""Print the GPU's kernels of a network's pass, by PyTorch and with the layers that tilewise replaces.

    python3 -m benchmarks.networks.profile --models FOLDER --networks NAME ... [--batches 16] [--rows 15]

Needs a GPU, torchvision and transformers. It tells where the time of a cell of ``compare.py`` goes: for each side the
kernels that take longest, with their calls and microseconds in a pass, and for our side the predicted times by layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import tilewise.torch as tw
from benchmarks.networks.zoo import NETWORKS, prepare
from tilewise.dispatch import Dispatcher
from tilewise.markdown import table

_PASSES = 5
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with a model's folder for each target")
    parser.add_argument("--networks", nargs="+", required=True, choices=list(NETWORKS))
    parser.add_argument("--batches", type=int, nargs="+", default=[16])
    parser.add_argument("--rows", type=int, default=15, help="kernels of each side")
    args = parser.parse_args(argv)
    torch.backends.cudnn.benchmark = True
    folders = sorted(path for path in args.models.iterdir() if path.is_dir())
    with tw.use(*map(Dispatcher.from_folder, folders)):
        for name in args.networks:
            for batch in args.batches:
                model, x = prepare(NETWORKS[name], batch, torch.bfloat16, "cuda")
                ours, report = tw.optimize(model, x, launch="graph")
                for side, network in (("PyTorch", model), ("tilewise", ours)):
                    rows = kernels(network, x)
                    print(f"\n{name}, batch {batch}, {side}: {sum(row[2] for row in rows):.0f} us\n")
                    lines = [[key[:_NAME_LENGTH], f"{n:g}", f"{us:.1f}"] for key, n, us in rows[: args.rows]]
                    print(table(["kernel", "calls", "us"], lines))
                print(f"\n{report}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
