"""Score selections for the holdout problems, whatever made them: no model is needed.

tilewise score predictions=FILE [data=FILE_OR_FOLDER] [target=NAME]

FILE is CSV or parquet: a row per holdout problem with the problem's columns and `kernel_name`; `target` unless target=
names it, and `predicted_tflops` if you like. The files of `tilewise evaluate output=` fit. data= is the folder of
`tilewise data publish`, whose column `split` tells the holdout, or the measurements that it was made of.

A missing problem, one outside the holdout, and a kernel without a valid measurement are refused with their row.
docs/leaderboard.md shows the scores of others, and how to add yours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewise.cli._console import plain_console, write_result
from tilewise.data.quality import prepare_files
from tilewise.errors import ConfigError
from tilewise.evaluate import is_predictions, read_predictions
from tilewise.ops import Target
from tilewise.publish import Score, score_predictions

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Score ``cfg.predictions`` by the holdout problems in ``cfg.data``.

    Raises:
        ConfigError: the file is not given, or has another ending.
        DataError: the file or the table cannot be used.
    """
    if not cfg.predictions or not is_predictions(cfg.predictions):
        raise ConfigError(f"predictions: a file FILE.csv or FILE.parquet is needed, got {cfg.predictions}")
    predictions = read_predictions(Path(cfg.predictions), Target.parse(cfg.target))
    data = Path(cfg.data)
    frame = prepare_files(data, predictions.target).frame
    score = score_predictions(predictions, frame, float(cfg.holdout.fraction))
    write_result(score.to_dict())
    _show(plain_console(), score, str(cfg.predictions))


def _show(console: Console, score: Score, where: str) -> None:
    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    figures = score.figures
    say(f"{score.target}, {where}: {figures['n_problems']} problems, {score.n_kernels} kernels selected")
    for label, name in (("mean", "mean"), ("median", "median"), ("P10", "p10"), ("worst", "min")):
        say(f"  {label:<8}{100 * figures[f'{name}_efficiency']:6.2f} %")
    say(f"  {'top-1':<8}{100 * figures['top1_accuracy']:6.2f} %")
    if score.vendor:
        ratios = ", ".join(f"{label} {score.vendor[n]:.2f}" for label, n in (("P10", "p10"), ("least", "least")))
        say(f"vendor's time / yours: {score.vendor['geomean']:.2f}, {ratios} ({score.vendor['n_problems']} problems)")
    if score.tflops_error is not None:
        say(f"predicted TFLOPS: median error {100 * score.tflops_error:.1f} %")
    for s in score.weakest:
        say(f"weak: {s['slice']} {s['value']}, P10 {100 * s['p10_efficiency']:.1f} % of {s['n_problems']} problems")
    say(score.split_rule)
