"""CK Tile's ``gpu_helper`` for kernels that a C program cannot launch: run the selected kernel on the GPU, print JSON.

    python -m tilewise.dispatch.gpu_helper M N K --model FOLDER [--validate]

The keys and units are those of the C program in tilewise/capi, and so are the operands: small integers, whose sums are
exact. Exit status 1 with ``"status": "error"`` where there is no GPU, no model, or no kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.dispatch._dispatcher import Dispatcher
from tilewise.errors import TilewiseError, UsageError
from tilewise.ops import GemmProblem

if TYPE_CHECKING:
    import torch

_WARM_UP, _SAMPLES = 3, 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, print its JSON and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs=3, metavar=("M", "N", "K"))
    parser.add_argument("--model", type=Path, required=True, help="folder of a model of matrix products")
    parser.add_argument("--validate", action="store_true", help="compare the result with the exact one")
    args = parser.parse_args(argv)
    try:
        print(json.dumps(measure(GemmProblem(*args.sizes), args.model, args.validate)))
    except TilewiseError as e:
        print(json.dumps({"status": "error", "error": str(e)}))
        return 1
    return 0


def measure(problem: GemmProblem, folder: Path, validate: bool) -> dict[str, object]:
    """Run the kernel that a model selects for a problem, and return the document to print.

    Raises:
        UsageError: this machine has no GPU, or lacks PyTorch.
        TilewiseError: the model cannot be loaded, or has no kernel for the problem.
    """
    try:
        import torch
    except ImportError as e:
        raise UsageError("running kernels needs torch; the C program gpu_helper computes on the host") from e
    if not torch.cuda.is_available():
        raise UsageError("this machine has no GPU; the C program gpu_helper computes on the host")
    with Dispatcher.from_folder(folder) as dispatcher:
        kernel = dispatcher.select(problem).kernel_name
        a, b = (t.cuda() for t in operands(problem))
        dtype = dispatcher.target.dtype
        given = [t.to(_torch_type(dtype)) for t in (a, b.T.contiguous())]  # rcr: B is stored by columns
        result = dispatcher.run(problem, *given)
        ms = median_ms(lambda: dispatcher.run(problem, *given, out=result))
    document: dict[str, object] = {
        "problem": {"M": problem.M, "N": problem.N, "K": problem.K},
        "kernel": kernel,
        "execution": {"time_ms": ms, "tflops": problem.flops / (ms * 1e9)},
    }
    if validate:
        document["validation"] = {"accuracy": accuracy(result, a.double() @ b.double())}
    return document | {"status": "success"}


def operands(problem: GemmProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A of shape (M, K) and B of shape (K, N): integers from -2 to 2, as fp32 on the host."""
    import torch

    def entries(rows: int, columns: int) -> torch.Tensor:
        i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
        return ((i * 7 + j * 5 + i * j % 3) % 5 - 2).float()

    return entries(problem.M, problem.K), entries(problem.K, problem.N)


def accuracy(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the percentage of results that equal the exact sums up to one rounding of the result's type."""
    import torch

    step = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[result.dtype]
    right = (result.double() - exact).abs() <= exact.abs() * step
    return 100.0 * float(right.double().mean())


def median_ms(run: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU, in milliseconds."""
    import torch

    for _ in range(_WARM_UP):
        run()
    times = []
    for _ in range(_SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(sorted(times)[_SAMPLES // 2])


def _torch_type(dtype: str) -> torch.dtype:
    from tilewise.kernels.triton.programs import TORCH_TYPES

    return TORCH_TYPES[dtype]


if __name__ == "__main__":
    sys.exit(main())
