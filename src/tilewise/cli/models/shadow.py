"""Report the observations of dispatchers that ran a second model (TILEWISE_SHADOW), or roll back by them.

tilewise shadow [report] [input=FILE] [target=NAME] [out=FOLDER]     shadow.json and shadow.md in FOLDER
tilewise shadow rollback [input=FILE] [target=NAME] [gate.mean_drop=0.5 ...]

FILE is the file in TILEWISE_SHADOW_JOURNAL, by default shadow.jsonl in TILEWISE_CACHE. rollback puts @previous back if
the observations show that @production is slower, beyond the gate's limits, or ends such a canary; otherwise it changes
nothing. Run it periodically in a job that may write to the registry. See docs/shadow.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.cli._console import plain_console, write_result
from tilewise.dispatch.shadowing import SHADOW_JOURNAL
from tilewise.dispatch.sources import cache_folder
from tilewise.gate import (
    Thresholds,
    build_shadow_report,
    read_observations,
    shadow_report_page,
    write_shadow_report,
)
from tilewise.ops import Target
from tilewise.registry import connect
from tilewise.registry.promotion import roll_back_if_slower

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Report on ``cfg.input``, or roll ``cfg.target`` back by it.

    Raises:
        DataError: the file cannot be used, or has no observation of the target.
        ConfigError: a setting is out of its range.
        RegistryUnavailableError: the registry does not answer (rollback only).
    """
    observations = read_observations(cfg.input or cache_folder() / SHADOW_JOURNAL)
    console = plain_console()
    if cfg.action == "rollback":
        connect(cfg.tracking.uri)
        verdict = roll_back_if_slower(
            cfg.target, observations, Thresholds.from_config(cfg.gate, Target.parse(cfg.target))
        )
        outcome = "rolled back: in production again" if verdict.rolled_back else "stays in production"
        console.print(
            f"{verdict.production or cfg.target}: {outcome}; {verdict.reason}", soft_wrap=True, highlight=False
        )
        number = verdict.production.number if verdict.production else None
        write_result(
            {
                "rolled_back": verdict.rolled_back,
                "production": number,
                "canary_ended": verdict.canary_ended,
                "reason": verdict.reason,
            }
        )
        return
    report = build_shadow_report(
        observations, cfg.target, level=float(cfg.compare.level), n_resamples=int(cfg.compare.n_resamples)
    )
    console.print(shadow_report_page(report), soft_wrap=True, highlight=False)
    if cfg.out:
        write_shadow_report(Path(cfg.out), report)
        console.print(f"report: {cfg.out}/shadow.md", soft_wrap=True, highlight=False)
    write_result(report)
