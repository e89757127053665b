"""Build every target that has committed measurements: ``make repro-all``, on a cluster if one is given.

python -m tilewise.cli.models.repro [cluster=dask ...]

Without a cluster this is `dvc repro`, which builds one target after another. With one, each target is a task, and the
workers share this folder: DVC lets several commands work in one folder as long as no two look after the same stage. So
a task names the stages of its target alone, and a last `dvc repro` looks after what they share, the measurements. Runs
go to a tracking server rather than to a file if workers are many.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from tilewise.cli.compose import compose
from tilewise.cli.main import reporting_errors
from tilewise.cluster import ClusterSettings, open_executor
from tilewise.errors import ConfigError, TilewiseError

_SHOWN_LINES = 20  # of a stage that failed


def build_target(folder: str, target: str) -> str:
    """Build the stages of one target in a project's folder, and return its name.

    Raises:
        ConfigError: this host does not see the folder.
        TilewiseError: a stage failed; the message has the end of its output.
    """
    file = Path(folder) / "dvc.yaml"
    if not file.is_file():
        raise ConfigError(f"{folder} has no dvc.yaml on this host; workers must share the project's folder")
    stages = yaml.safe_load(file.read_text())["stages"]  # in the order in which they depend on each other
    command = ["dvc", "--wait-for-lock", "repro", "--single-item", *(f"{stage}@{target}" for stage in stages)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:]
        raise TilewiseError("\n".join([f"{' '.join(command)} failed:", *lines]))
    return target


def longest_first(folder: str, targets: Sequence[str]) -> list[str]:
    """Return targets by the bytes of their measurements, most first, so that no large one is left at the end."""
    sizes = {t: sum(f.stat().st_size for f in Path(folder, "data", t).rglob("*.parquet")) for t in targets}
    return sorted(targets, key=lambda target: -sizes[target])


def build_targets(folder: str, targets: Sequence[str], cluster: ClusterSettings) -> None:
    """Build all targets as tasks, then the rest of the pipeline.

    Raises:
        TilewiseError: a stage failed.
    """
    if cluster.kind != "local":
        with open_executor(cluster) as executor:
            executor.map(
                build_target,
                folder,
                longest_first(folder, targets),
                lambda target: print(f"built {target}", flush=True),
            )
    status = subprocess.run(["dvc", "repro"], cwd=folder).returncode
    if status:
        raise TilewiseError(f"dvc repro failed with status {status}")


def _main(argv: Sequence[str]) -> int:
    cfg = compose(["stages=all", *argv])
    build_targets(str(Path.cwd()), list(cfg.targets), ClusterSettings.from_config(cfg.cluster))
    return 0


if __name__ == "__main__":
    raise SystemExit(reporting_errors(lambda: _main(sys.argv[1:])))
