"""What dispatchers observed of two models (TILEWISE_SHADOW): who was right, and, if asked for, the roll-back by it.

tilewise shadow [report] [input=FILE] [target=NAME] [out=FOLDER]     shadow.json and shadow.md in FOLDER
tilewise shadow rollback [input=FILE] [target=NAME] [gate.mean_drop=0.5 ...]

FILE is what TILEWISE_SHADOW_JOURNAL names, by default shadow.jsonl in TILEWISE_CACHE. rollback puts @previous back
where @production was observed to be surely slower than it, beyond the gate's limits, and otherwise changes nothing: a
job that may write to the registry runs it now and then. docs/shadow.md tells more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewise.dispatch.folder import cache_folder
from tilewise.dispatch.shadow import FILE
from tilewise.ops import Target
from tilewise.registry.observations import read
from tilewise.registry.observed_report import page, report, write_report
from tilewise.registry.regret import roll_back_on_regret
from tilewise.registry.thresholds import Thresholds
from tilewise.registry.tracking import connect

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Report on ``cfg.input``, or roll ``cfg.target`` back by it.

    Raises:
        DataError: the file cannot be used, or says nothing of the target.
        ConfigError: a setting is out of its range.
        RegistryUnavailableError: rolling back, the registry does not answer.
    """
    found = read(cfg.input or cache_folder() / FILE)
    console = Console()
    if cfg.action == "rollback":
        connect(cfg.tracking.uri)
        verdict = roll_back_on_regret(cfg.target, found, Thresholds.from_config(cfg.gate, Target.parse(cfg.target)))
        said = "rolled back: in production again" if verdict.rolled_back else "stays in production"
        console.print(f"{verdict.production or cfg.target}: {said}; {verdict.reason}", soft_wrap=True, highlight=False)
        return
    values = report(found, cfg.target, level=float(cfg.compare.level), n_resamples=int(cfg.compare.n_resamples))
    console.print(page(values), soft_wrap=True, highlight=False, markup=False)
    if cfg.out:
        write_report(Path(cfg.out), values)
        console.print(f"report: {cfg.out}/shadow.md", soft_wrap=True, highlight=False)
