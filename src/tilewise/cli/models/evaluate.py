"""Judge a model on the holdout problems, which no training or tuning sees.

tilewise evaluate [model_dir=FOLDER] [data=FILE_OR_FOLDER] [out=FOLDER] [holdout.fraction=0.18]
                  [output=PREDICTIONS.csv|.parquet] [html=EXPLORER.html] ['slices={pipeline: compv4, layout: rcr}']

Writes metrics.json, predictions.parquet (one row per problem) and plots. data= may also be a file of CK Tile's. output=
writes the predictions with their target, for `tilewise compare`; slices= judges these problems only, and prints the
figures. html= writes one page in which a problem can be picked, with its ranking and its measurements.
holdout.fraction=0 judges every problem of the table; make sure that the model was not trained on them.
docs/evaluation.md explains each figure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from rich.console import Console

from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.cli._figures import show_confidence, show_figures, show_regret, show_slices
from tilewise.data.importers import read_table_or_import
from tilewise.errors import ConfigError
from tilewise.evaluate import (
    CK_M_SIZE,
    Evaluation,
    SliceFigures,
    evaluate,
    only_slices,
    report_summary,
    sliced_metrics,
    with_ck_slices,
    write_evaluation_report,
    write_predictions,
)
from tilewise.files import write_text
from tilewise.model import load_artefact
from tilewise.ops import OPS, Target

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

_SHOWN_WORST = 5


def run(cfg: DictConfig) -> None:
    """Evaluate ``cfg.model_dir`` on ``cfg.data`` into ``cfg.out`` (default ``cfg.reports``).

    Raises:
        ArtefactError: the model cannot be loaded.
        ConfigError: the model was trained on some of the holdout.
        DataError: the table cannot be used.
    """
    model = load_artefact(cfg.model_dir)
    console = plain_console()
    frame = read_table(Path(cfg.data), model.target, console)
    fraction = float(cfg.holdout.fraction) or None
    if cfg.html:
        require_format(Path(cfg.html), ".html")
    evaluation = evaluate(model, frame, fraction)
    if cfg.slices:
        _show_only(cfg, evaluation, console)
        return
    folder = Path(cfg.out or cfg.reports)
    write_evaluation_report(folder, evaluation, model.cv_metrics)
    if cfg.output:
        write_predictions(Path(cfg.output), evaluation)
    if cfg.html:
        from tilewise.publish import explorer_page  # only needed for the page

        write_text(cfg.html, explorer_page(model, frame, fraction))
    show_figures(
        console,
        f"{model.target.name}, {cfg.model_dir}",
        {"cv": model.cv_metrics, "holdout": evaluation.metrics},
        pool_size=evaluation.pool_size,
        split_rule=str(model.cv_metrics.get("split_rule", evaluation.split_rule)),
        ceiling=evaluation.noise_ceiling,
    )
    report = report_summary(evaluation, model.cv_metrics)
    show_regret(console, report["best_of_top_k"])
    if report["trust"]:
        show_confidence(console, report["trust"])
    for label, errors in evaluation.extras.items():
        known = f"median error {errors['median_error']:.1%}, P90 {errors['p90_error']:.1%}, R2 {errors['r2']:.3f}"
        console.print(f"predicted {label} of {errors['n']:.0f} candidates: {known}", soft_wrap=True, highlight=False)
    show_slices(console, [*report["slices"], *ck_slices(evaluation)])
    console.print(f"worst of {len(evaluation.per_problem)} problems:")
    for line in _worst(model.target, report["worst"][:_SHOWN_WORST]):
        console.print(line, soft_wrap=True, highlight=False)
    if (whole := evaluation.whole_pool) is not None:
        console.print(
            "the table lists the fastest kernels of a problem only, and the figures above are among the listed; from "
            f"the whole pool, an unlisted selection charged as the slowest listed: mean {whole.mean_efficiency:.2%}, "
            f"P10 {whole.p10_efficiency:.2%}, {whole.listed_rate:.1%} of the selections listed"
        )
    if evaluation.n_unjudged:
        console.print(f"{evaluation.n_unjudged} problems left out: no kernel of the model's pool is valid for them")
    if cfg.html:
        console.print(f"explorer: {cfg.html}", soft_wrap=True, highlight=False)
    console.print(f"report: {folder}", soft_wrap=True, highlight=False)
    write_result({**report, "ck_slices": ck_slices(evaluation)})


def read_table(path: Path, target: Target, console: Console) -> pd.DataFrame:
    """Return the measurements in a table, or in a file of CK Tile's; print how much of the latter was lost.

    Raises:
        DataError: the file cannot be read.
    """
    frame, imported = read_table_or_import(path, target)
    if imported is not None and imported.lost:
        console.print(f"{path}: {imported.lost} of {imported.parts} measurements cannot be used", highlight=False)
    return frame


def ck_slices(evaluation: Evaluation) -> list[SliceFigures]:
    """Return the figures of the slices by CK Tile's bounds of M; empty for convolutions."""
    table = with_ck_slices(evaluation.per_problem, evaluation.target.op)
    return sliced_metrics(table, [CK_M_SIZE]) if CK_M_SIZE in table else []


def _show_only(cfg: DictConfig, evaluation: Evaluation, console: Console) -> None:
    """Print the figures of the problems in ``cfg.slices``; a report is not written, as its figures would be partial."""
    from omegaconf import OmegaConf

    if cfg.out or cfg.html:
        raise ConfigError("slices: prints the figures of some problems, and writes no report; leave out out= and html=")
    wanted = cast("dict[str, object]", OmegaConf.to_container(cfg.slices, resolve=True))
    table = with_ck_slices(evaluation.per_problem, evaluation.target.op)
    chosen = table[only_slices(table, evaluation.target.op, {k: str(v) for k, v in wanted.items()})]
    if cfg.output:
        write_predictions(Path(cfg.output), dataclasses.replace(evaluation, per_problem=chosen))
    (figures,) = sliced_metrics(chosen.assign(chosen="all"), ["chosen"], least=1)
    named = " ".join(f"{name}={value}" for name, value in wanted.items())
    console.print(
        f"{evaluation.target.name}, {named}: {figures['n_problems']} of {len(table)} problems "
        f"({evaluation.split_rule}); mean {figures['mean_efficiency']:.2%}, median {figures['median_efficiency']:.2%}, "
        f"P10 {figures['p10_efficiency']:.2%}, worst {figures['min_efficiency']:.2%}; "
        f"pool of {evaluation.pool_size} kernels",
        soft_wrap=True,
        highlight=False,
    )
    whole = {name: value for name, value in figures.items() if name not in ("slice", "value")}
    write_result({"target": evaluation.target.name, "slices": wanted, "split_rule": evaluation.split_rule, **whole})


class _WorstProblem(TypedDict):
    """A problem among `worst` in metrics.json."""

    problem: dict[str, int | str]
    efficiency: float
    selected: str
    oracle: str
    reasons: list[str]


def _worst(target: Target, problems: Sequence[_WorstProblem]) -> list[str]:
    """Return the problems with the lowest efficiency, two lines each: problem and kernels, then reasons."""
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    lines = []
    for row in problems:
        selected, oracle = (name.removeprefix(prefix) for name in (row["selected"], row["oracle"]))
        problem = OPS[target.op].in_words(row["problem"])
        lines.append(f"  {100 * row['efficiency']:6.2f} %  {problem}: {selected}, oracle {oracle}")
        lines += [f"            {'; '.join(row['reasons'])}"] if row["reasons"] else []
    return lines
