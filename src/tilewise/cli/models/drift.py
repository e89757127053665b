"""Report how far requests have moved from a model's training data, and the measured regret, by slice.

tilewise drift [input=REQUESTS.jsonl] [gate.shadow=JOURNAL.jsonl] [model_dir=models/TARGET] [out=FOLDER]
               [register=false]

REQUESTS is a file of TILEWISE_RECORD, JOURNAL one of TILEWISE_SHADOW_JOURNAL; give at least one. The report goes to
drift.json and drift.csv in FOLDER (reports/TARGET/drift by default), and to MLflow as a run of the target's experiment.
`dvc plots show` draws drift.csv. See docs/fleet.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from tilewise.cli._console import plain_console, write_result
from tilewise.dispatch.logs import count_requests
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.gate import Observation, gather_evidence, read_observations
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Problem

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from tilewise.evaluate import DriftRow, TimedPick


def run(cfg: DictConfig) -> None:
    """Report on ``cfg.input`` and ``cfg.gate.shadow``.

    Raises:
        ConfigError: neither file is given.
        DataError: a file cannot be used, or has nothing about the target.
        RegistryUnavailableError: the registry does not answer.
    """
    if not (cfg.input or cfg.gate.shadow):
        raise ConfigError("drift needs requests or observations: input=FILE of TILEWISE_RECORD, or gate.shadow=FILE")
    from tilewise.evaluate import drift_rows  # imports pandas

    model = load_artefact(cfg.model_dir)
    requests = count_requests(cfg.input, model.target) if cfg.input else {}
    timed = _timed(model, read_observations(cfg.gate.shadow).valid) if cfg.gate.shadow else {}
    rows = drift_rows(model, requests, timed)
    files = write_drift(Path(cfg.out or Path(cfg.reports) / "drift"), model, rows)
    run_id = None if cfg.register is False else _log(cfg, model, rows, files)
    _print(rows)
    write_result({"target": model.target.name, "model": model.content_hash, "run": run_id, "rows": rows})


def _timed(model: TrainedModel, observations: Sequence[Observation]) -> dict[Problem, TimedPick]:
    """Return the problems on which the model was compared with any other, whichever of them served."""
    from tilewise.evaluate import TimedPick

    ours = model.content_hash
    pairs = [{o.production.content_hash, o.candidate.content_hash} for o in observations]
    others = {h for pair in pairs if ours in pair for h in pair} - {ours}
    found: dict[Problem, TimedPick] = {}
    for other in sorted(others):
        for problem in gather_evidence(observations, other, ours).problems:
            ms = problem.ms_per_call
            best = ms / max(1.0, problem.speed_up)
            known = found.get(problem.problem)
            if known is None or best < known.best_ms:
                found[problem.problem] = TimedPick(problem.calls, ms, best)
    return found


def write_drift(folder: Path, model: TrainedModel, rows: Sequence[DriftRow]) -> list[Path]:
    """Write the report as JSON and as a table for DVC's plots, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    report, table = folder / "drift.json", folder / "drift.csv"
    values = {"target": model.target.name, "content_hash": model.content_hash, "rows": list(rows)}
    write_text(report, json.dumps(values, indent=1) + "\n")
    lines = ["group,problems,requests,far_problems,far_requests,timed,regret"]
    for row in rows:
        regret = "" if row["regret"] is None else f"{row['regret']:.6f}"
        figures = [row["problems"], row["requests"], f"{row['far_problems']:.6f}", f"{row['far_requests']:.6f}"]
        lines.append(",".join(map(str, [f"{row['slice']}={row['value']}", *figures, row["timed"], regret])))
    write_text(table, "\n".join(lines) + "\n")
    return [report, table]


def _log(cfg: DictConfig, model: TrainedModel, rows: Sequence[DriftRow], files: Sequence[Path]) -> str:
    """Log the report, with the figures of each slice as metrics."""
    from tilewise.registry import connect
    from tilewise.registry.training_runs import log_drift

    metrics = {}
    for row in rows:
        name = "/".join(("drift", row["slice"], row["value"].replace("+", " or more")))
        metrics[f"{name}/far_requests"] = row["far_requests"]
        if row["regret"] is not None:
            metrics[f"{name}/regret"] = row["regret"]
    connect(cfg.tracking.uri)
    tags = {"tilewise.target": model.target.name, "content_hash": model.content_hash}
    return log_drift(cfg.tracking.experiment, tags, metrics, files)


def _print(rows: Sequence[DriftRow]) -> None:
    table = Table()
    for column in ("slice", "problems", "requests", "far problems", "far requests", "timed", "regret"):
        table.add_column(column, justify="left" if column == "slice" else "right")
    for row in rows:
        regret = "" if row["regret"] is None else f"{row['regret']:.1%}"
        figures = (f"{row['far_problems']:.1%}", f"{row['far_requests']:.1%}", str(row["timed"]), regret)
        table.add_row(f"{row['slice']}={row['value']}", str(row["problems"]), str(row["requests"]), *figures)
    plain_console().print(table)
