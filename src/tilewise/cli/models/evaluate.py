"""Judge a model on the holdout problems, which no training or tuning sees.

tilewise evaluate [model_dir=FOLDER] [data=FILE_OR_FOLDER] [out=FOLDER] [holdout.fraction=0.18]

Writes metrics.json, predictions.parquet (one row per problem) and plots. holdout.fraction=0 judges every problem of the
table; make sure that the model was not trained on them. docs/evaluation.md explains each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from tilewise.cli._console import plain_console, write_result
from tilewise.cli._figures import show_confidence, show_figures, show_regret, show_slices
from tilewise.data import read_measurements
from tilewise.evaluate import evaluate, report_summary, write_evaluation_report
from tilewise.model import load_artefact
from tilewise.ops import OPS, Target

if TYPE_CHECKING:
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
    frame = read_measurements(Path(cfg.data), model.target)
    evaluation = evaluate(model, frame, float(cfg.holdout.fraction) or None)
    folder = Path(cfg.out or cfg.reports)
    write_evaluation_report(folder, evaluation, model.cv_metrics)
    console = plain_console()
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
    show_slices(console, report["slices"])
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
    console.print(f"report: {folder}", soft_wrap=True, highlight=False)
    write_result(report)


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
