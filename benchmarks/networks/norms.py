"""The batch normalisations of whole networks in training: kernels of ours beside PyTorch's calls.

    python3 -m benchmarks.networks.norms run [--networks NAME ...] [--batches 16 128] [--json FILE]
    python -m benchmarks.networks.norms merge FILE ... [--json FILE]

`run` needs a GPU, torchvision and transformers. It takes the distinct normalisations of the networks' training steps
that `tilewise.torch.optimize` turns into ours, with the addition and activation after them, and times each forward and
backward in one CUDA graph, in bf16. PyTorch's side adds and activates in place, as torchvision's networks do. Errors
are those of the input's gradient against fp32, as a share of its norm. `merge` joins the results of several GPUs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.results import RESULTS, load, machine, save
from tilewise.markdown import table
from tilewise.metrics import ratio_figures

ROUNDS = 5  # of both sides; each is some milliseconds of replays
ROUND_MS = 4
_ANYTHING = "anything"
Key = tuple[tuple[int, ...], bool, str]  # shape, whether there is a residual, activation
HEADER = ("batch", "after the normalisation", "distinct", "geomean", "P10", "least", "most error, ours / PyTorch's")


def normalisations(names: Sequence[str], batch: int) -> list[Key]:
    """Return the distinct normalisations of the networks' training steps that kernels compute, on the GPU."""
    import torch

    import tilewise.torch as tw
    from benchmarks.networks.zoo import NETWORKS, prepare
    from tilewise.torch.norm import NORMS

    found: dict[Key, None] = {}

    def recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
        def record(self: Any, x: Any, residual: Any = None, activation: str | None = None) -> Any:
            found[tuple(x.shape), residual is not None, activation or ""] = None
            return forward(self, x, residual, activation)

        return record

    for name in names:
        model, x = prepare(NETWORKS[name], batch, torch.bfloat16, "cuda")
        model = tw.optimize(model.train(), x, inplace=True, launch="graph").model
        with torch.no_grad():
            kinds = [patch.object(kind, "forward", recorded(kind.forward)) for kind in NORMS.values()]
            with kinds[0], kinds[1]:
                model(x)
        torch.cuda.empty_cache()
    return list(found)


def measured(key: Key) -> dict[str, Any]:
    """Return times and errors of both sides of one normalisation."""
    import torch
    from torch import nn
    from triton.testing import do_bench_cudagraph

    from tilewise.torch.norm import NORMS

    shape, has_residual, activation = key
    base = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm3d
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    theirs = base(shape[1]).cuda()
    nn.init.normal_(theirs.weight)
    exact, theirs = theirs, copy.deepcopy(theirs).bfloat16()
    ours = NORMS[base](shape[1]).cuda().bfloat16()
    ours.load_state_dict(theirs.state_dict())
    made = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2 + has_residual)]
    dy, *inputs = (t.contiguous(memory_format=layout) for t in made)

    def step(layer: Any, dtype: Any = torch.bfloat16) -> Callable[[], Any]:
        x, *other = (t.to(dtype).requires_grad_() for t in inputs)
        residual, gradient = other[0] if other else None, dy.to(dtype)

        def once() -> Any:
            y = layer(x, residual, activation) if layer is ours else _ended(layer(x), residual, activation)
            return torch.autograd.grad(y, [x, *other, layer.weight, layer.bias], gradient)[0]

        return once

    truth = step(exact, torch.float32)()
    sides = {"pytorch": step(theirs), "tilewise": step(ours)}
    errors = {f"{n}_error": float((once().float() - truth).norm() / truth.norm()) for n, once in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, once in sides.items():
            times[name].append(do_bench_cudagraph(once, rep=ROUND_MS))
    medians = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    return {"shape": shape, "residual": has_residual, "activation": activation, **medians, **errors}


def _ended(y: Any, residual: Any, activation: str) -> Any:
    from torch.nn import functional

    y = y if residual is None else y.add_(residual)
    return getattr(functional, activation)(y, inplace=True) if activation else y


def run(names: Sequence[str], batches: Sequence[int], output: Path) -> None:
    """Measure the distinct normalisations of some networks, and write them."""
    import torch

    entries = []
    for batch in batches:
        for key in normalisations(names, batch):
            entries.append({"batch": batch, **measured(key)})
            print(entries[-1], file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
    save(output, {"benchmark": "norms", "machine": machine(), "entries": entries})


def merge(files: Sequence[Path], output: Path) -> None:
    """Write the entries of several results as one; of a normalisation that several have, the first."""
    results = [load(file) for file in files]
    entries: dict[Any, Any] = {}
    for entry in (entry for result in results for entry in result["entries"]):
        entries.setdefault((entry["batch"], tuple(entry["shape"]), entry["residual"], entry["activation"]), entry)
    save(output, {**results[0], "entries": [entries[key] for key in sorted(entries)]})


def text(result: Mapping[str, Any]) -> str:
    """Return a table of PyTorch's time / ours by batch and by what follows the normalisation."""
    kinds: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for entry in result["entries"]:
        ends = ["addition"] * entry["residual"] + [entry["activation"]] * bool(entry["activation"])
        for after in (", ".join(ends) or "nothing", _ANYTHING):
            kinds.setdefault((entry["batch"], after), []).append(entry)
    rows = []
    for (batch, after), some in sorted(kinds.items(), key=lambda kind: (kind[0][0], kind[0][1] != _ANYTHING, kind[0])):
        figures = ratio_figures(np.array([e["pytorch_ms"] / e["tilewise_ms"] for e in some]))
        errors = (f"{max(e[f'{side}_error'] for e in some):.4f}" for side in ("tilewise", "pytorch"))
        shown = (f"{figures[name]:.2f}" for name in ("geomean", "p10", "least"))
        rows.append([str(batch), after, str(len(some)), *shown, " / ".join(errors)])
    return table(HEADER, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    measure, join = verbs.add_parser("run"), verbs.add_parser("merge")
    measure.add_argument("--networks", nargs="+", help="names in benchmarks.networks.zoo; default: all")
    measure.add_argument("--batches", type=int, nargs="+", default=[16, 128])
    join.add_argument("files", type=Path, nargs="+", metavar="FILE")
    for verb in (measure, join):
        verb.add_argument("--json", type=Path, default=RESULTS / "norms.json")
    args = parser.parse_args(argv)
    if args.verb == "run":
        from benchmarks.networks.zoo import NETWORKS

        run(args.networks or list(NETWORKS), args.batches, args.json)
    else:
        merge(args.files, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
