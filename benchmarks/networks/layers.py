"""The layers of whole networks: the pick by prediction and the pick by measuring, beside PyTorch's own call.

    python3 -m benchmarks.networks.layers run --models FOLDER [--networks NAME ...] [--batches 1 16 128] [--json FILE]
    python -m benchmarks.networks.layers seen [--data data] [--json FILE]

`run` needs a GPU, torchvision and transformers. It takes the distinct computations of a training step of each network,
measures the best three kernels by the model together with PyTorch's own call, in a cache of its own, and keeps three
times: of the model's pick, of PyTorch's call, and of the fastest. So the pick by measuring, the fastest, is judged by
the times that chose it. `seen` marks the problems that a model may have learnt from, by their group key.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import RESULTS, load, machine, save
from tilewise.errors import UsageError
from tilewise.markdown import table
from tilewise.metrics import efficiency_figures, ratio_figures
from tilewise.ops import OPS, Problem, Target

MEASURE = 3  # kernels of each problem
HEADER = (
    "target", "problems", "pick: geomean", "P10", "least", "below 0.95", "measured: geomean", "least",
    "pick's efficiency: mean", "P10", "worst",
)  # fmt: skip


def computations(names: Sequence[str], batches: Sequence[int]) -> dict[str, list[Problem]]:
    """Return the distinct problems of the networks' training steps by target, on the GPU."""
    import torch

    import tilewise.torch as tw
    from benchmarks.networks.zoo import NETWORKS, prepare

    found: dict[str, dict[Problem, None]] = {}
    for name in names:
        for batch in batches:
            model, x = prepare(NETWORKS[name], batch, torch.bfloat16, "cuda")
            for layer in tw.optimize(model.train(), x, inplace=True, launch="graph").report.layers:
                for made in layer.passes:
                    problem = OPS[Target.parse(made.target).op].from_dict(made.problem)
                    found.setdefault(made.target, {})[problem] = None
            torch.cuda.empty_cache()
    return {target: list(problems) for target, problems in found.items()}


def run(models: Path, names: Sequence[str], batches: Sequence[int], output: Path) -> None:
    """Measure all layers, and write the times target by target; those that the file has are left out.

    Raises:
        UsageError: `models` has no models.
    """
    import tilewise.torch as tw
    from tilewise.dispatch import Dispatcher

    folders = sorted(path for path in models.iterdir() if path.is_dir())
    if not folders:
        raise UsageError(f"{models} has no models; run `make repro-all` first")
    dispatchers = {d.target.name: d for d in map(Dispatcher.from_folder, folders)}
    with tw.use(*dispatchers.values()):
        problems = computations(names, batches)
    empty: dict[str, Any] = {"benchmark": "layers", "machine": machine(), "entries": []}
    result = load(output) if output.exists() else empty
    done = {entry["target"] for entry in result["entries"]}
    for target in sorted(problems.keys() & dispatchers.keys() - done):
        print(f"{target}: {len(problems[target])} problems", file=sys.stderr, flush=True)
        result["entries"] += measured(dispatchers[target], problems[target])
        save(output, result)


def measured(dispatcher: Any, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Return an entry with the three times for each problem on which the pick and PyTorch's call computed right."""
    from tilewise.dispatch.measuring import entries_by_context, find_measured_folder
    from tilewise.kernels.vendor import VendorCall

    picks = {problem: dispatcher.rank(problem, 1)[0].kernel_name for problem in problems}
    dispatcher.measure(problems, MEASURE)
    names = [dispatcher.get_instance_string(kernel) for kernel in dispatcher.kernels]
    pytorch = [name for name, kernel in zip(names, dispatcher.kernels, strict=True) if isinstance(kernel, VendorCall)]
    rows = []
    for context, entries in entries_by_context(find_measured_folder(os.environ["TILEWISE_CACHE"])).items():
        for entry in entries if context.target == dispatcher.target.name else ():
            ms = {names[kernel]: time for kernel, time in entry.latency_ms}
            own = [ms[name] for name in pytorch if name in ms]
            if own and (pick := picks[entry.problem]) in ms:
                times = {"pick_ms": ms[pick], "pytorch_ms": min(own), "best_ms": min(ms.values())}
                about = {"target": dispatcher.target.name, "problem": _brief(entry.problem), "pick": pick}
                rows.append({**about, **times})
    return rows


def _brief(problem: Problem) -> dict[str, int | str]:
    """Return the dimensions of a problem that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(problem)}
    return {name: value for name, value in problem.to_dict().items() if value != defaults[name]}


def mark_seen(result: Mapping[str, Any], data: Path) -> None:
    """Mark in each entry whether the group key of its problem has rows outside the holdout in a folder of data."""
    from benchmarks.learning.targets import HOLDOUT
    from tilewise.data import group_keys, holdout_mask, read_measurements

    for target in map(Target.parse, {entry["target"] for entry in result["entries"]}):
        keys = np.unique(group_keys(target.op, read_measurements(data, target)), axis=0)
        learnt = set(map(tuple, keys[~holdout_mask(target.op, keys, HOLDOUT)].tolist()))
        for entry in result["entries"]:
            if entry["target"] == target.name:
                entry["seen"] = OPS[target.op].from_dict(entry["problem"]).group_key in learnt


def text(result: Mapping[str, Any]) -> str:
    """Return a table of ratios to PyTorch's call and of the picks' efficiency, by target and by whether it was seen."""
    rows = []
    for target in dict.fromkeys(entry["target"] for entry in result["entries"]):
        of_target = [entry for entry in result["entries"] if entry["target"] == target]
        for label, some in (("all", of_target), ("unseen", [e for e in of_target if not e.get("seen", True)])):
            if some:
                rows.append([f"`{target}`, {label}", str(len(some)), *_cells(some)])
    return table(HEADER, rows)


def _cells(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    pick, pytorch, best = (np.array([e[f"{n}_ms"] for e in entries]) for n in ("pick", "pytorch", "best"))
    picked, chosen, efficiency = ratio_figures(pytorch / pick), ratio_figures(pytorch / best), best / pick
    of_pick = efficiency_figures(efficiency)
    return [
        *(f"{picked[n]:.2f}" for n in ("geomean", "p10", "least")),
        f"{(pytorch / pick < 0.95).mean():.1%}",
        *(f"{chosen[n]:.2f}" for n in ("geomean", "least")),
        *(f"{of_pick[f'{n}_efficiency']:.1%}" for n in ("mean", "p10", "min")),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    measure, seen = verbs.add_parser("run"), verbs.add_parser("seen")
    measure.add_argument("--models", type=Path, required=True, help="folder with a model's folder for each target")
    measure.add_argument("--networks", nargs="+", help="names in benchmarks.networks.zoo; default: all")
    measure.add_argument("--batches", type=int, nargs="+", default=[1, 16, 128])
    seen.add_argument("--data", type=Path, default=Path("data"), help="measurements that models learn from")
    for verb in (measure, seen):
        verb.add_argument("--json", type=Path, default=RESULTS / "layers.json")
    args = parser.parse_args(argv)
    if args.verb == "run":
        from benchmarks.networks.zoo import NETWORKS

        with tempfile.TemporaryDirectory() as cache:
            os.environ["TILEWISE_CACHE"] = cache
            run(args.models, args.networks or list(NETWORKS), args.batches, args.json)
        return 0
    result = load(args.json)
    mark_seen(result, args.data)
    save(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
