"""``tilewise VERB -m key=a,b``: one job per combination, each in a folder of its own, and one table at the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from tilewise.cli._console import plain_console

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Where a job of these verbs writes, below its own folder, so that it does not replace what DVC's stages wrote.
_OUTPUTS: Mapping[str, Mapping[str, str]] = {
    "train": {"out": "model"},
    "evaluate": {"out": "reports"},
    "promote": {"reports": "reports"},
}
_FIGURES = {"train": "model/cv_metrics_tflops.json", "evaluate": "reports/metrics.json"}
_STATISTICS = {"mean": "mean", "median": "median", "P10": "p10", "worst": "min"}
_COLUMNS = {name: f"{statistic}_efficiency" for name, statistic in _STATISTICS.items()}


@dataclass(frozen=True)
class _Job:
    """A finished job: its overrides, and its folder."""

    overrides: str
    folder: Path


def multirun(verb: str, overrides: Sequence[str], run: Callable[[DictConfig], None]) -> None:
    """Run a verb once per combination, through Hydra's launcher and sweeper.

    Args:
        verb: The verb's name.
        overrides: The overrides, those with several values included.
        run: The verb's function.
    """
    from hydra.core.hydra_config import HydraConfig

    from tilewise.cli._checks import check_request
    from tilewise.cli.compose import clear_errors, compose

    params = [override for override in overrides if override.startswith("params=")]
    swept = [override for override in overrides if override not in params]
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    done: list[_Job] = []

    def job(_: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        folder, task = Path(hydra_config.runtime.output_dir), list(hydra_config.overrides.task)
        own = [f"{key}={folder / name}" for key, name in _OUTPUTS.get(verb, {}).items() if key not in given]
        cfg = compose([*params, *task, *own])
        check_request(verb, cfg)
        run(cfg)
        done.append(_Job(" ".join(task), folder))

    with clear_errors():
        run_hydra(verb, ["--multirun", *swept], job)
    _show(verb, done)


def run_hydra(verb: str, words: Sequence[str], job: Callable[[DictConfig], None]) -> None:
    """Run `job` as Hydra runs an application with these words on its command line."""
    import hydra

    from tilewise.cli.project.search_path import add_project
    from tilewise.conf_files import conf_dir

    add_project()
    sys.argv = [f"tilewise {verb}", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise errors to main() instead of printing them and exiting
    hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name="config")(job)()


def _show(verb: str, jobs: Sequence[_Job]) -> None:
    """Print a row per job with its figures."""
    if verb not in _FIGURES or not jobs:
        return
    table = Table("job", *_COLUMNS, "folder")
    for job in jobs:
        path = job.folder / _FIGURES[verb]
        figures = json.loads(path.read_text()) if path.is_file() else {}
        figures = figures.get("overall", figures.get("holdout", figures))
        shown = (f"{figures[key]:.2%}" if key in figures else "" for key in _COLUMNS.values())
        table.add_row(job.overrides, *shown, os.path.relpath(job.folder))
    plain_console().print(table)
