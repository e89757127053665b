"""Search for a problem's best configuration beyond the pool, by the model's predictions.

tilewise search 'problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3}' [search.method=tpe] [search.n_evaluations=500]
tilewise search search.problems=50 output=PLAN.json    search for validation problems; write a plan that measures the
                                                       results beside the pool's recorded best
tilewise search search.problems=50 collect.simulate=DATA   search among recorded kernels; judge by recorded times
tilewise search input=TABLE                            judge the measured plan: do the results beat the pool?

The model is that of model_dir. Every configuration is legal and supports its problem. Equal seeds give equal results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from omegaconf import OmegaConf
from rich.console import Console

from tilewise.campaigns.search import (
    SearchSettings,
    judge_search_campaign,
    plan_search_campaign,
    search,
    simulate_searches,
    validation_rows,
)
from tilewise.checks import is_whole, require
from tilewise.cli._console import plain_console, write_result
from tilewise.data import read_measurements
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import OPS

if TYPE_CHECKING:
    from omegaconf import DictConfig

_NEAR = 0.99
_SHOWN = 5


def run(cfg: DictConfig) -> None:
    """Run one search, write a campaign's plan, or judge its measurements.

    Raises:
        ArtefactError: the model cannot be loaded.
        ConfigError: neither a problem nor a number of problems is given, or a setting is out of its range.
        DataError: the table cannot be used.
    """
    model, settings, console = load_artefact(cfg.model_dir), settings_from_config(cfg), plain_console()
    if cfg.input:
        _verdict(cfg, model, console)
    elif cfg.search.problems:
        _campaign(cfg, model, settings, console)
    elif cfg.problem:
        _one(cfg, model, settings, console)
    else:
        raise ConfigError("name what to search for: 'problem={...}', or search.problems=50 for validation problems")


def settings_from_config(cfg: DictConfig) -> SearchSettings:
    """Return the settings of ``cfg.search``.

    Raises:
        ConfigError: a value is out of its range.
    """
    s = cfg.search
    for name, value in (("count", s.count), ("problems", s.problems)):
        ok = value is None or (is_whole(value) and value >= 1)
        require(f"search.{name} must be a whole number of at least 1", ok, value)
    return SearchSettings(s.method, s.n_evaluations, s.seed, s.start, s.caution)


def _one(cfg: DictConfig, model: TrainedModel, settings: SearchSettings, console: Console) -> None:
    values = cast("dict[str, int | str]", OmegaConf.to_container(cfg.problem, resolve=True))
    problem, target = OPS[model.target.op].from_dict(values), model.target
    result = search(model, problem, settings, cfg.search.count)
    best = model.best(problem, 1)[1][0]
    console.print(
        f"{target.name}, {settings.method}, {result.evaluations} evaluations; the pool's best is predicted "
        f"{best:.1f} TFLOPS",
        soft_wrap=True,
        highlight=False,
    )
    for f in result.found:
        origin = "of the pool" if f.in_pool else "new"
        console.print(f"  {f.predicted_tflops:8.1f} TFLOPS predicted  {f.kernel.config}  {origin}", highlight=False)
    found = [
        {
            "kernel_name": f.kernel.name(target.op, target.variant, target.dtype),
            "kernel": f.kernel.to_dict(),
            "predicted_tflops": f.predicted_tflops,
            "in_pool": f.in_pool,
        }
        for f in result.found
    ]
    document = {"target": target.name, "problem": problem.to_dict(), "method": settings.method, "found": found}
    _write(cfg.output, document | {"evaluations": result.evaluations, "pool_best_tflops": best})


def _campaign(cfg: DictConfig, model: TrainedModel, settings: SearchSettings, console: Console) -> None:
    source = cfg.collect.simulate or cfg.data
    frame = read_measurements(Path(source), model.target)
    rows = validation_rows(frame, model, cfg.holdout.fraction, cfg.search.problems, settings.seed)
    if cfg.collect.simulate:
        simulated = simulate_searches(rows, model, settings, cfg.search.count)
        first, best = (np.array([getattr(s, n) for s in simulated]) for n in ("efficiency", "best_of_count"))
        figures = {
            "problems": len(simulated),
            "within_1_percent": float((first >= _NEAR).mean()),
            f"best_of_{cfg.search.count}_within_1_percent": float((best >= _NEAR).mean()),
            "mean_efficiency": float(first.mean()),
            "p10_efficiency": float(np.percentile(first, 10)),
            "most_evaluations": max(s.evaluations for s in simulated),
        }
        document = {"target": model.target.name, "method": settings.method, **figures}
        console.print("\n".join(f"{key}: {value}" for key, value in document.items()), highlight=False)
        _write(cfg.output, document)
        return
    if not cfg.output:
        raise ConfigError("output: missing; name the file of the plan, e.g. output=build/search.json")
    plan = plan_search_campaign(rows, model, settings, cfg.search.count, cfg.collect.run_id)
    write_text(Path(cfg.output), plan.dumps())
    pairs = sum(len(item.kernels or ()) for item in plan.items)
    console.print(
        f"plan: {cfg.output}: {len(plan.items)} problems, {pairs} pairs; measure it with `tilewise collect input=`, or "
        "`python -m tilewise.collect` on a bare machine",
        soft_wrap=True,
        highlight=False,
    )
    write_result({"plan": str(cfg.output), "problems": len(plan.items), "pairs": pairs})


def _verdict(cfg: DictConfig, model: TrainedModel, console: Console) -> None:
    verdict, problems = judge_search_campaign(read_measurements(Path(cfg.input), model.target), model)
    figures = verdict.to_dict()
    console.print("\n".join(f"{key}: {value:.4g}" for key, value in figures.items()), highlight=False)
    for row in problems.nlargest(_SHOWN, "gain").to_dict("records"):
        shape = {n: row[n] for n in OPS[model.target.op].column_names()}
        console.print(
            f"  {row['gain']:.3f}x  {OPS[model.target.op].in_words(shape)}: {row['found_kernel']} against "
            f"{row['pool_kernel']}",
            soft_wrap=True,
            highlight=False,
        )
    _write(cfg.output, {"target": model.target.name, **figures, "per_problem": problems.to_dict("records")})


def _write(path: str | None, document: Mapping[str, object]) -> None:
    """Write the result to the file of output=, if there is one."""
    if path:
        write_text(Path(path), json.dumps(document, indent=1) + "\n")
    write_result(document)
