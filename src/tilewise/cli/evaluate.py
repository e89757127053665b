"""Judge a model on the holdout problems, which no training or tuning ever saw.

tilewise evaluate [model_dir=FOLDER] [data=FILE_OR_FOLDER] [out=FOLDER] [holdout.fraction=0.18]

Writes metrics.json, predictions.parquet (a row a problem) and plots. holdout.fraction=0 judges every problem of the
table: then it is yours to know that the model was not trained on them. docs/evaluation.md says what each figure means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tilewise.cli.figures import show_figures, show_regret, show_slices, show_trust
from tilewise.data.schema import read_measurements
from tilewise.evaluate.holdout import evaluate
from tilewise.evaluate.report import summary, write_report
from tilewise.model.artefact import load_artefact
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
    write_report(folder, evaluation, model.cv_metrics)
    console = Console()
    show_figures(
        console,
        f"{model.target.name}, {cfg.model_dir}",
        {"cv": model.cv_metrics, "holdout": evaluation.metrics},
        pool_size=evaluation.pool_size,
        split_rule=str(model.cv_metrics.get("split_rule", evaluation.split_rule)),
        ceiling=evaluation.noise_ceiling,
    )
    report = summary(evaluation, model.cv_metrics)
    show_regret(console, report["best_of_top_k"])
    if report["trust"]:
        show_trust(console, report["trust"])
    show_slices(console, report["slices"])
    console.print(f"worst of {len(evaluation.per_problem)} problems:")
    for line in _worst(model.target, report["worst"][:_SHOWN_WORST]):
        console.print(line, soft_wrap=True, highlight=False)
    if evaluation.n_unjudged:
        console.print(f"{evaluation.n_unjudged} problems left out: no kernel of the model's pool is valid for them")
    console.print(f"report: {folder}", soft_wrap=True, highlight=False)


def _worst(target: Target, problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """The problems with the lowest efficiency, two lines each: what, and why."""
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    lines = []
    for row in problems:
        selected, oracle = (str(row[n]).removeprefix(prefix) for n in ("selected", "oracle"))
        problem = OPS[target.op].in_words(row["problem"])
        lines.append(f"  {100 * row['efficiency']:6.2f} %  {problem}: {selected}, oracle {oracle}")
        lines += [f"            {'; '.join(row['reasons'])}"] if row["reasons"] else []
    return lines
