"""Whole networks with the layers that tilewise replaces, and with PyTorch alone, in one run.

    python3 -m benchmarks.networks.compare --models FOLDER [--networks NAME ...] [--batches 1 16 128]
                                           [--modes graphs ...] [--json FILE]

Needs a GPU, torchvision and transformers; `FOLDER` holds models by target (`models` after `make repro-all`). PyTorch's
side has cuDNN in benchmark mode. Modes:

* ``eager``: forward passes, called from Python;
* ``graphs``: the same in CUDA graphs;
* ``compiled``: compiled by Inductor on both sides, in CUDA graphs;
* ``max-autotune``: PyTorch's side compiled with that mode, ours as in ``compiled``;
* ``training``, ``eager-training``: forward and backward passes, in CUDA graphs and called from Python;
* ``adapter``: as ``compiled``, but ours is the network as it is, compiled with ``tilewise.torch.inductor``;
* ``adapter-max-autotune``, ``adapter-training``: the same with PyTorch's side in that mode, and for training;
* ``graphs-measured``, ``compiled-measured``, ``training-measured``: as without the suffix, after `measure`. As this
  keeps its times in ``TILEWISE_CACHE``, where other modes would find them, these modes run in a call of their own, with
  a cache of its own.

With the adapter, `layers` and `replaced` count nodes of the compiled graphs; Inductor computes the rest on both sides.

Rounds of both sides alternate; a cell is the median time of each side and the median of the rounds' ratios. Errors are
those of the outputs (in training, of all parameters' gradients) against fp32, as a share of the norm. Cells are
written as they come; a second call leaves out those that FILE has.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch import Tensor, nn
from torch._inductor.async_compile import shutdown_compile_workers

import tilewise.torch as tw
from benchmarks.networks.zoo import NETWORKS, prepare
from benchmarks.results import load, machine, save
from tilewise.dispatch import Dispatcher
from tilewise.errors import UsageError
from tilewise.torch import inductor

MEASURED = "-measured"  # suffix of modes
COMPILED = ("compiled", "max-autotune", "adapter", "adapter-max-autotune", "adapter-training", "compiled-measured")
MODES = ("eager", "graphs", "training", "eager-training", *COMPILED, "graphs-measured", "training-measured")
ROUNDS = 15
ROUND_SECONDS = 0.02  # of each side in a round, at least one pass

Work = Callable[[], object]
Facts = Callable[[], dict[str, Any]]


def cells(
    names: Sequence[str], batches: Sequence[int], modes: Sequence[str], known: set[tuple[str, int, str]], device: str
) -> Iterator[dict[str, Any]]:
    """Measure and yield each combination that is not known; a side that fails is stated with its error."""
    for name in names:
        for batch in batches:
            for mode in modes:
                if (name, batch, mode) not in known:
                    today = datetime.now(UTC).date().isoformat()
                    about = {"network": name, "batch": batch, "mode": mode, "date": today}
                    try:
                        yield about | cell(name, batch, mode, device)
                    except (RuntimeError, ImportError, ValueError) as e:  # one network's fault costs its own cell
                        yield about | {"error": f"{type(e).__name__}: {str(e).splitlines()[0][:200]}"}
                    torch.compiler.reset()
                    if device == "cuda":
                        torch.cuda.empty_cache()


def cell(name: str, batch: int, mode: str, device: str) -> dict[str, Any]:
    """Return times, ratio and errors of one network, batch size and mode."""
    torch.backends.cudnn.benchmark = True
    model, x = prepare(NETWORKS[name], batch, torch.bfloat16, device)
    if _trains(mode):
        model.train()
    start = time.perf_counter()
    ours, facts = _adapted(model) if mode.startswith("adapter") else _optimised(model, x, mode)
    optimize_s = time.perf_counter() - start
    theirs = model
    if mode in COMPILED:
        theirs = torch.compile(model, mode="max-autotune-no-cudagraphs" if "max-autotune" in mode else None)
    models = {"pytorch": theirs, "tilewise": ours}
    works = {}
    for side, network in models.items():
        works[side] = work(network, x, mode)
        shutdown_compile_workers()  # they keep kernels as they were before their launches were timed
    times = alternate(works, ROUNDS if device == "cuda" else 1)
    ratios = [a / b for a, b in zip(times["pytorch"], times["tilewise"], strict=True)]
    return {
        **facts(),
        "pytorch_ms": statistics.median(times["pytorch"]),
        "tilewise_ms": statistics.median(times["tilewise"]),
        "ratio": statistics.median(ratios),
        "optimize_s": optimize_s,
        **errors(models, name, batch, mode, device),
    }


def _optimised(model: nn.Module, x: Tensor, mode: str) -> tuple[nn.Module, Facts]:
    """Return the optimised network, compiled if the mode says so, and the facts on it."""
    if mode.endswith(MEASURED):
        tw.measure(model, x)
    ours, report = tw.optimize(model, x, launch="eager" if mode.startswith("eager") else "graph")
    facts = {
        "layers": len(report.layers),
        "replaced": sum(layer.replaced for layer in report.layers),
        "folded": len(report.folded),
        "norms": len(report.norms),
        "expected": report.pytorch_ms / report.expected_ms if report.expected_ms else None,
    }
    return torch.compile(ours) if mode in COMPILED else ours, lambda: facts


def _adapted(model: nn.Module) -> tuple[nn.Module, Facts]:
    """Return the network compiled with the adapter, and the facts on it, which are known after its first call."""
    options = inductor.options(launch="graph")
    (graph_pass,) = (value for value in options.values() if isinstance(value, inductor.GraphPass))
    ours = torch.compile(copy.deepcopy(model), options=options)
    return ours, lambda: {"layers": graph_pass.seen, "replaced": graph_pass.replaced}


def _set_up_inductor(*, sees_graphs: bool) -> None:
    """Let both sides share the launch that Inductor times for a kernel of its own; see every graph compiled if told to.

    Timed on each side, launches of one kernel differed: 75 and 118 us in vgg16_bn, a sixteenth of a pass by chance.
    `cell` also ends the compiling processes between the sides.
    """
    torch._inductor.config.triton.unique_kernel_names = False  # equal kernels have equal sources
    if sees_graphs:  # the adapter counts them
        torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False


def _trains(mode: str) -> bool:
    return mode.removesuffix(MEASURED).endswith("training")


def work(model: nn.Module, x: Tensor, mode: str) -> Work:
    """Return a function that makes one pass."""
    step = _training(model, x) if _trains(mode) else _forward(model, x)
    return step if mode.startswith("eager") or x.device.type == "cpu" else captured(step)


def _forward(model: nn.Module, x: Tensor) -> Work:
    def forward() -> Tensor:
        with torch.no_grad():
            y: Tensor = model(x)
        return y

    return forward


def _training(model: nn.Module, x: Tensor) -> Work:
    def step() -> None:
        for p in model.parameters():
            p.grad = None
        model(x).float().square().mean().backward()

    return step


def captured(step: Work) -> Work:
    """Return a function that replays `step` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> object:
        graph.replay()
        return kept  # the graph writes into these tensors

    return replay


def alternate(works: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of a pass by side and round; sides alternate, and each begins every second round."""
    passes = {}
    for side, once in works.items():
        once()
        passes[side] = max(1, int(ROUND_SECONDS / max(_seconds(once, 3), 1e-6)))
    times: dict[str, list[float]] = {side: [] for side in works}
    order = list(works)
    for _ in range(rounds):
        for side in order:
            times[side].append(_seconds(works[side], passes[side]) * 1e3)
        order.reverse()
    return times


def _seconds(once: Work, passes: int) -> float:
    """Return the seconds of a pass, from the first call to the end of the last one's work."""
    _wait()
    start = time.perf_counter()
    for _ in range(passes):
        once()
    _wait()
    return (time.perf_counter() - start) / passes


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def errors(models: dict[str, nn.Module], name: str, batch: int, mode: str, device: str) -> dict[str, float]:
    """Return the error of each side against the same network in fp32."""
    exact, x = prepare(NETWORKS[name], batch, torch.float32, device)
    if _trains(mode):
        exact.train()
    torch.backends.cudnn.benchmark = False  # nothing is timed here, and trying algorithms takes seconds
    truth = _results(exact, x, mode)
    found = {}
    for side, model in models.items():
        got = _results(model, x.to(torch.bfloat16), mode)
        found[f"{side}_error"] = float((got - truth).norm() / truth.norm())
    return found


def _results(model: nn.Module, x: Tensor, mode: str) -> Tensor:
    """Return the output, or all gradients of training, as one vector in fp32."""
    if not _trains(mode):
        with torch.no_grad():
            y: Tensor = model(x)
        return y.float().flatten()
    _training(model, x)()
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with a model's folder for each target")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 128])
    predicted = [mode for mode in MODES if not mode.endswith(MEASURED)]
    parser.add_argument("--modes", nargs="+", default=predicted, choices=MODES)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/networks_h200.json"))
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folders = sorted(path for path in args.models.iterdir() if path.is_dir())
    if not folders:
        raise UsageError(f"{args.models} has no models; run `make repro-all` first")
    if 0 < sum(mode.endswith(MEASURED) for mode in args.modes) < len(args.modes):
        raise UsageError(f"modes with {MEASURED} need a call of their own: the others would use their measurements")
    result: dict[str, Any] = (
        load(args.json) if args.json.exists() else {"benchmark": "networks", "machine": machine(), "cells": []}
    )
    known = {(c["network"], c["batch"], c["mode"]) for c in result["cells"]}
    _set_up_inductor(sees_graphs=any(mode.startswith("adapter") for mode in args.modes))
    with tw.use(*map(Dispatcher.from_folder, folders)):
        for found in cells(args.networks, args.batches, args.modes, known, device):
            print(found, file=sys.stderr, flush=True)
            result["cells"].append(found)
            save(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
