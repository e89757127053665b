"""Print the result of ``make repro``: the holdout table, the gate's decision, and one selection from ``@production``.

python -m tilewise.cli.summary 'problem={...}' [target=NAME]

The script only reads the pipeline's reports. The verbs evaluate, promote and select show the parts in detail.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewise.cli._console import plain_console
from tilewise.cli._figures import show_figures
from tilewise.cli.compose import compose
from tilewise.cli.main import reporting_errors
from tilewise.dispatch import Dispatcher
from tilewise.errors import DataError
from tilewise.evaluate import NoiseCeiling

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Print the summary of ``cfg.target``.

    Raises:
        DataError: the pipeline has not written its reports yet.
        UnknownTargetError: no model is in production.
    """
    console = plain_console(width=None if sys.stdout.isatty() else 110)
    metrics, promotion = (_read(Path(cfg.reports) / name) for name in ("metrics.json", "promotion.json"))
    ceiling = metrics["noise_ceiling"]
    show_figures(
        console,
        str(cfg.target),
        {"cv": metrics["cv"], "holdout": metrics["holdout"]},
        pool_size=metrics["pool_size"],
        split_rule=metrics["split_rule"],
        ceiling=NoiseCeiling(**ceiling) if ceiling else None,
    )
    console.print(f"gate: {promotion['outcome']}", highlight=False)
    console.print(*_selection(cfg), sep="\n", soft_wrap=True, highlight=False)


def _selection(cfg: DictConfig) -> list[str]:
    problem = dict(cfg.problem)
    dispatcher = Dispatcher.from_registry(cfg.target, uri=cfg.tracking.uri)
    chosen = dispatcher.select(problem)
    return [
        f"selected for {' '.join(f'{name}={size}' for name, size in problem.items())}:",
        f"  {chosen.kernel_name}",
        f"  {chosen.predicted_tflops or 0:.1f} TFLOPS predicted, by the {chosen.why} in production"
        f" (version {dispatcher.version}, best of {dispatcher.kernel_count} kernels)",
    ]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; 'dvc repro' writes it") from error


if __name__ == "__main__":
    raise SystemExit(reporting_errors(lambda: run(compose(sys.argv[1:]))))
