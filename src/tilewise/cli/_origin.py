"""The origin of a training or promotion: the pipeline, or a person who tries something.

Only ``dvc repro`` and the verb ``promote`` register models by themselves. An experiment does so if it is asked to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tilewise.cli.compose import changed_settings

if TYPE_CHECKING:
    from omegaconf import DictConfig

Source = Literal["dvc repro", "dvc exp run", "mlflow run", "multirun", "command line"]

_SETTINGS = ("model", "tune", "n_splits", "seed", "holdout", "warm_start")
_NAME_LENGTH = 80


@dataclass(frozen=True)
class Origin:
    """The tool that started a command.

    Attributes:
        source: The tool.
        name: The name that DVC gives to its experiment; None elsewhere.
    """

    source: Source
    name: str | None = None

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Origin:
        """Read the variables that DVC and MLflow set for the commands that they start, and Hydra's state."""
        from hydra.core.hydra_config import HydraConfig

        if "DVC_EXP_BASELINE_REV" in environment or "DVC_EXP_NAME" in environment:
            return cls("dvc exp run", environment.get("DVC_EXP_NAME"))
        if "DVC_STAGE" in environment:
            return cls("dvc repro")
        if HydraConfig.initialized():
            return cls("multirun")
        return cls("mlflow run" if "MLFLOW_RUN_ID" in environment else "command line")

    @property
    def is_experiment(self) -> bool:
        """Return whether a tool for experiments started the command."""
        return self.source in ("dvc exp run", "mlflow run", "multirun")

    def experiment(self, cfg: DictConfig) -> str:
        """Return the MLflow experiment that a training logs to."""
        return str(cfg.tracking.experiment if self.source == "dvc repro" else cfg.tracking.sandbox)

    def run_name(self, cfg: DictConfig) -> str:
        """Return a name that tells the run of a training from others: DVC's name, and the settings that differ."""
        changed = ",".join(_changed(cfg)) or "defaults"
        name = " ".join(filter(None, ["repro" if self.source == "dvc repro" else self.name, changed]))
        return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 3]}..."

    def tags(self, cfg: DictConfig) -> dict[str, str]:
        """Return tags of a run: what started it, with which settings, from which sources."""
        from tilewise.train import source_changes

        commit, changed = source_changes(Path.cwd())
        return {
            "tilewise.source": self.source,
            "tilewise.settings": " ".join(_changed(cfg)) or "defaults",
            "tilewise.git_dirty": ", ".join(changed) or "no",
            **({"mlflow.source.git.commit": commit} if commit != "unknown" else {}),
            **({"tilewise.dvc_experiment": self.name} if self.name else {}),
        }


def _changed(cfg: DictConfig) -> list[str]:
    """Return the settings that differ, without the ranges that composing has taken out of the search."""
    changed = changed_settings(cfg, _SETTINGS)
    return [text for text in changed if not (text.startswith("tune.space.") and text.endswith("=null"))]


def version_tags() -> dict[str, str]:
    """Return tags of a registered version: the sources that differ from the commit, if any do."""
    from tilewise.train import source_changes

    _, changed = source_changes(Path.cwd())
    return {"git_dirty": ", ".join(changed)} if changed else {}
