"""Host time of eager ``tilewise.torch`` calls beside PyTorch's functions, where PyTorch's own call is the pick.

``python3 -m benchmarks.runtime.eager_overhead [--calls 200] [--repeats 25] [--json FILE]`` (needs numpy, torch, triton)

On a GPU, batches of calls are queued behind a kernel that keeps it busy, as in :mod:`benchmarks.runtime.run_overhead`,
so only host time is measured. Without one, ``TRITON_INTERPRET=1`` makes the functions serve tensors on the CPU.
PyTorch's computation is then part of both times, so the problems are tiny, and only the difference counts. Batches of
both functions alternate, and the median batch counts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import machine, save
from benchmarks.runtime.run_overhead import host_us
from tilewise.dispatch import Dispatcher
from tilewise.errors import MeasurementError, TilewiseError, UsageError
from tilewise.kernels import Pool
from tilewise.kernels.vendor import VendorCall
from tilewise.markdown import table
from tilewise.ops import OPS, Target

_BUSY_CYCLES_A_CALL = 400_000  # about 200 us, longer than the host time of any call
_CALLS = {"grouped_conv": "cudnn", "gemm": "cublas"}


def dispatchers(arch: str = "sm90") -> list[Dispatcher]:
    """Return a dispatcher for each fp16 target of an arch, with PyTorch's own call as the only candidate."""
    targets = [Target(op, variant, "fp16", arch) for op in _CALLS for variant in OPS[op].variants]
    return [Dispatcher(t, Pool(t.op, t.variant, t.dtype, (VendorCall(_CALLS[t.op]),)), None) for t in targets]


def cases(device: str) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return the calls to compare, by name: (tilewise's function, PyTorch's)."""
    import torch
    from torch.nn import functional as own

    import tilewise.torch as ours

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).half()

    x, w = (half(1, 8, 4, 4), half(8, 8, 3, 3))
    last_x, last_w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    a, b, bias = half(4, 8), half(8, 8), half(8)
    learnt = last_w.clone().requires_grad_()
    conv, product = (ours.conv2d, own.conv2d), (ours.linear, own.linear)
    calls: dict[str, tuple[tuple[Callable[..., object], Callable[..., object]], list[object], dict[str, int]]] = {
        "conv2d": (conv, [last_x, last_w], {"padding": 1}),
        "conv2d with bias": (conv, [last_x, last_w, bias], {"padding": 1}),
        "conv2d for training": (conv, [last_x, learnt], {"padding": 1}),
        "matmul": ((ours.matmul, torch.matmul), [a, b], {}),
        "linear with bias": (product, [a, b, bias], {}),
    }
    return {name: (partial(f, *xs, **kw), partial(g, *xs, **kw)) for name, ((f, g), xs, kw) in calls.items()}


def measure(calls: int, repeats: int) -> list[dict[str, Any]]:
    """Measure all cases; return the microseconds by function.

    Raises:
        MeasurementError: there is neither a GPU nor Triton's interpreter.
    """
    os.environ["TILEWISE_MEASURE"] = "off"
    import torch

    from tilewise.dispatch.launching import device_arch
    from tilewise.kernels.triton.programs import interpreted

    gpu = torch.cuda.is_available() and not interpreted()
    if not gpu and not interpreted():
        raise MeasurementError("there is no GPU; set TRITON_INTERPRET=1 to measure on the CPU")
    import tilewise.torch as ours

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True  # as networks run; PyTorch's and tilewise's calls are then the same
    before = partial(torch.cuda._sleep, calls * _BUSY_CYCLES_A_CALL) if gpu else lambda: None
    after: Callable[[], object] = torch.cuda.synchronize if gpu else lambda: None
    found = []
    with ours.use(*dispatchers(device_arch(0) if gpu else "sm90")):
        for name, (mine, theirs) in cases("cuda" if gpu else "cpu").items():
            us = host_us({"tilewise": mine, "pytorch": theirs}, calls, repeats, before, after)
            about = {"function": name, "tilewise_us": us["tilewise"], "pytorch_us": us["pytorch"]}
            found.append({**about, "overhead_us": us["tilewise"] - us["pytorch"]})
    return found


def text(found: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    rows = [[row["function"], *(f"{row[f'{n}_us']:.1f}" for n in ("tilewise", "pytorch", "overhead"))] for row in found]
    return table(("function", "tilewise, us", "PyTorch, us", "difference"), rows)


def main() -> int:
    """Run the command and return its exit status: 0 done, 1 no device, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.runtime.eager_overhead", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=200, help="calls per batch; 400 fill the device's queue")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    try:
        found = measure(args.calls, args.repeats)
        if args.json:
            save(args.json, {"benchmark": "eager_overhead", "machine": machine(), "cases": found})
    except TilewiseError as e:
        print(f"eager_overhead: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    print(text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
