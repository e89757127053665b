"""Latency of a selection: python -m benchmarks.runtime.selection_latency [--json FILE] [--model FOLDER].

Three models are trained here and kept in build/benchmarks. A formula generates their measurements, on real problems and
pools, because a fresh clone has no trained model. small_pool: the shipped forward pool and 500 trees of 127 leaves.
large_pool: 4,608 legal kernels and 2,000 trees of 255 leaves. Both have a cost model and its shortlist, as trained
models do; large_pool_unlisted has neither, so its trees rank all kernels. `--model` uses a trained model for the small
pool.

LightGBM's `Booster.predict` scores the same matrices, all kernels, in the same run with one thread. Computing these
matrices, the cost model and sorting are not counted for it. Each time is the median (p99) over new problems.
same_winner: by LightGBM's scores the same kernels come first. unlisted_winner_rate: the share of problems whose first
kernel would be the same without a shortlist.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import lightgbm as lgb
import numpy as np

from tilewise.arch import load_arch
from tilewise.collect.problems import grouped_conv_1
from tilewise.core import compiled_core
from tilewise.dispatch import Dispatcher
from tilewise.features import feature_table, log_work, terms_of
from tilewise.kernels import Pool, load_pool
from tilewise.kernels.triton import Kernel, illegal
from tilewise.model import (
    SCORES,
    ArtefactParts,
    TrainedModel,
    load_artefact,
    put_behind,
    read_parts,
    shortlisted,
    write_artefact,
)
from tilewise.ops import Problem, Target
from tilewise.train import ModelSettings
from tilewise.train.cost_model import calibrate

TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
FOLDER = Path("build/benchmarks/selection")
LARGE = 4608
ROWS = 20_000  # of the training tables

_COLD = """
import sys
from tilewise.dispatch import Dispatcher
Dispatcher.from_folder(sys.argv[1]).select(dict(N=8, C=96, K=192, G=2, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1))
"""
_RESIDENT = """
import sys, numpy
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
exec(sys.argv[2])
print(resident() - before)
"""


def large_pool() -> Pool:
    """Return the legal forward kernels of a grid, thinned evenly to :data:`LARGE`."""
    arch, sizes = load_arch(TARGET.arch), (16, 32, 64, 128, 256)
    grid = itertools.product(sizes, sizes, (16, 32, 64, 128), ("taps", "flat", "point"), (2, 4, 8), (2, 3, 4, 5))
    kernels = [Kernel(*settings, *more) for settings in grid for more in ((1, 1), (8, 1), (8, 2), (8, 4))]
    legal = [k for k in kernels if illegal(k, TARGET, arch) is None]
    chosen = [legal[i] for i in np.linspace(0, len(legal) - 1, LARGE).astype(int)]
    return Pool(TARGET.op, TARGET.variant, TARGET.dtype, tuple(chosen))


def make_model(folder: Path, pool: Pool, trees: int, leaves: int, *, with_cost_model: bool) -> Path:
    """Train a model of the given size on generated measurements, unless `folder` holds one."""
    if (folder / SCORES).is_file():
        return folder
    arch, table, rng = load_arch(TARGET.arch), feature_table(TARGET.op), np.random.default_rng(0)
    problems = [item.problem for item in grouped_conv_1()][::2]
    taste = rng.normal(size=(len(pool), 4)) / 10
    matrices, terms, works, labels, kernels = [], [], [], [], []
    for problem in problems:
        rows = table.rows_of(problem.to_dict(), pool.columns, variant="forward", dtype="bf16", arch=arch)
        picked = rng.choice(len(pool), min(ROWS // len(problems), len(pool)), replace=False)
        sizes = np.log2([problem.to_dict()[name] for name in ("C", "K", "Hi", "N")])
        launch = np.log(np.broadcast_to(rows.launch_clocks, len(pool)))  # type: ignore[attr-defined]
        clocks = launch + np.sin(taste @ sizes) / 3 + rng.normal(size=len(pool)) / 50
        matrices.append(table.compute(rows)[picked])
        terms.append(terms_of(table, rows).take(picked))
        works.append(log_work(rows)[picked])
        labels.append(works[-1] - clocks[picked])
        kernels.append(picked)
    x, y, kernel = np.concatenate(matrices), np.concatenate(labels), np.concatenate(kernels)
    fitted = None
    if with_cost_model:
        joined = type(terms[0])(
            *(np.concatenate([getattr(t, n) for t in terms]) for n in ("costs", "drivers", "program"))
        )
        work = np.concatenate(works)
        fitted = calibrate(joined, kernel, work - y, np.ones(len(y)), len(pool))
        y = y - (work - fitted.log_clocks(joined, kernel))
    parameters = {"objective": "regression", "num_leaves": leaves, "learning_rate": 0.05, "min_data_in_leaf": 5}
    settings = parameters | {"feature_fraction": 0.3, "verbosity": -1, "num_threads": os.cpu_count(), "seed": 0}
    booster = lgb.train(settings, lgb.Dataset(x, y if with_cost_model else np.log1p(np.exp(y))), trees)
    parts = ArtefactParts(
        TARGET, pool, arch, table, "residual" if with_cost_model else "log1p", booster.model_to_string(), None, {}, {},
        {"note": "generated by benchmarks.runtime.selection_latency"}, problems[:2], cost_model=fitted,
        shortlist=ModelSettings().shortlist if with_cost_model else 0,
    )  # fmt: skip
    write_artefact(folder, parts)
    return folder


def unseen(dispatcher: Dispatcher) -> list[Problem]:
    """Return supported problems that the generated models were not trained on."""
    return [p for p in (item.problem for item in grouped_conv_1()[1::2]) if dispatcher.is_supported(p)]


def times_us(ask: Callable[[Any], Any], questions: Sequence[Any]) -> list[float]:
    """Return the microseconds of each question."""
    ask(questions[0])  # allocates workspaces
    taken = []
    for question in questions[1:]:
        begun = perf_counter_ns()
        ask(question)
        taken.append((perf_counter_ns() - begun) / 1e3)
    return taken


def lightgbm_us(model: TrainedModel, folder: Path, problems: Sequence[Problem]) -> tuple[float, bool]:
    """Return the median time of LightGBM's predict, and whether it ranks the model's best kernels first."""
    booster, taken, same = lgb.Booster(model_str=read_parts(folder).booster_text), [], True
    for problem in problems:
        matrix = model.matrix(problem.to_dict(), model.pool.columns)
        begun = perf_counter_ns()
        scores = booster.predict(matrix, raw_score=True, num_threads=1)
        taken.append((perf_counter_ns() - begun) / 1e3)
        rates = model.log_rates(problem.to_dict(), model.pool.columns)
        can = np.flatnonzero(model.pool.supported(problem))
        total = scores[can] if rates is None else (rates + scores)[can]
        if rates is not None and model.shortlist:
            listed = shortlisted(np.zeros_like(can), rates[can], model.shortlist)
            total = put_behind(np.zeros_like(can), rates[can], total, listed)
        same &= model.best(problem, 5)[0] == tuple(can[np.argsort(-total, kind="stable")[:5]].tolist())
    return statistics.median(taken), same


def unlisted_winner_rate(model: TrainedModel, problems: Sequence[Problem]) -> float:
    """Return how often the first kernel would be the same if trees ranked all kernels."""
    same = []
    for problem in problems:
        can = np.flatnonzero(model.supported(problem))
        alone = model.score_rows(problem.to_dict(), {n: column[can] for n, column in model.pool.columns.items()})
        same.append(can[alone.argmax()] == model.best(problem, 1)[0][0])
    return float(np.mean(same))


def large_figures(folder: Path, problems: Sequence[Problem]) -> tuple[dict[str, Any], bool]:
    """Return the figures of a large pool, and whether LightGBM ranks alike."""
    model = load_artefact(folder)
    taken = statistics.median(times_us(lambda p: model.best(p, 5), problems[:120]))
    theirs, same = lightgbm_us(model, folder, problems[:3])
    return {
        "n": len(model.pool), "p50_ms": round(taken / 1e3, 2), "ratio": round(theirs / taken, 1),
        "trees": model.scores.n_trees, "lightgbm_ms": round(theirs / 1e3, 1),
    }, same  # fmt: skip


def measure(small: Path, large: Path, unlisted: Path) -> dict[str, Any]:
    """Return all figures."""
    dispatcher = Dispatcher.from_folder(small)
    model, problems = load_artefact(small), unseen(dispatcher)
    new = times_us(dispatcher.select, [p.to_dict() for p in problems])
    asked = problems[0].to_dict()
    dispatcher.select(asked)
    cached = times_us(lambda _: [dispatcher.select(asked) for _ in range(100)], range(200))
    theirs, same = lightgbm_us(model, small, problems[:40])
    large_pool, large_same = large_figures(large, problems)
    unlisted_pool, unlisted_same = large_figures(unlisted, problems)
    cold = []
    for _ in range(7):
        begun = perf_counter_ns()
        subprocess.run([sys.executable, "-c", _COLD, str(small)], check=True)
        cold.append((perf_counter_ns() - begun) / 1e6)
    done = subprocess.run(
        [sys.executable, "-c", _RESIDENT, str(small), _COLD], check=True, capture_output=True, text=True
    )
    p50 = statistics.median(new)
    return {
        "small_pool": {
            "n": len(model.pool), "p50_us": round(p50, 1), "p99_us": round(float(np.quantile(new, 0.99)), 1),
            "ratio": round(theirs / p50, 1), "trees": model.scores.n_trees, "lightgbm_us": round(theirs, 1),
        },
        "large_pool": large_pool,
        "large_pool_unlisted": unlisted_pool,
        "cached": {"p50_us": round(statistics.median(cached) / 100, 2)},
        "cold_start": {"ms": round(statistics.median(cold), 1)},
        "memory": {"mb_over_numpy": round(int(done.stdout) / 2**20, 1)},
        "unlisted_winner_rate": round(unlisted_winner_rate(model, problems), 4),
        "same_winner": bool(same and large_same and unlisted_same),
        "core": "numpy" if compiled_core() is None else "c",
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--model", type=Path, help="a trained model for the small pool")
    args = parser.parse_args()
    small = args.model or make_model(FOLDER / "small", load_pool(TARGET), 500, 127, with_cost_model=True)
    large, unlisted = (
        make_model(FOLDER / name, large_pool(), 2000, 255, with_cost_model=name == "large")
        for name in ("large", "unlisted")
    )
    figures = measure(small, large, unlisted)
    text = json.dumps(figures, indent=1)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
