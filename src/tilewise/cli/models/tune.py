"""Repeat the study behind a target's committed settings, or search deeper than the pipeline does: ``make tune``.

python -m tilewise.cli.models.tune TARGET [TRIALS]

conf/tuned/<target>.yaml records the command of its study. Its trials are run again, or TRIALS of them. A target whose
file records no search, or without a file, gets a search around its present settings. All trials are nested MLflow runs
of one training; the study is kept in build/optuna.db, so the same command continues one that was stopped. Committed
settings and models stay as they are: the model goes to build/tune/<target>.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

from tilewise.cli._tuned import tuned_path
from tilewise.cli.main import main as run_tilewise
from tilewise.cli.main import reporting_errors
from tilewise.errors import ConfigError
from tilewise.ops import Target

DEEP_TRIALS = 40
STORAGE = "sqlite:///build/optuna.db"
_COMMAND = re.compile(r"^# command: tilewise train (.*)$", re.MULTILINE)
_TRIALS = "tune.n_trials="


def study_overrides(target: str, n_trials: int | None = None) -> list[str]:
    """Return the overrides of `tilewise train` that repeat a target's study, or search deeper where it has none.

    Args:
        target: name of the target.
        n_trials: finished trials in all; None: as many as the committed study had, or :data:`DEEP_TRIALS`.

    Raises:
        ConfigError: the target is unknown, or `n_trials` is below 2: the first trial is the present settings.
    """
    Target.parse(target)
    if n_trials is not None and n_trials < 2:
        raise ConfigError(
            f"TRIALS must be a whole number of at least 2, as the first has the present settings, got {n_trials}"
        )
    path = tuned_path(target)
    recorded = _COMMAND.search(path.read_text()) if path.is_file() else None
    overrides = shlex.split(recorded[1]) if recorded else []
    if not any(override.startswith(_TRIALS) for override in overrides):
        overrides = [f"target={target}", f"{_TRIALS}{n_trials or DEEP_TRIALS}"]
    elif n_trials is not None:
        overrides = [f"{_TRIALS}{n_trials}" if o.startswith(_TRIALS) else o for o in overrides]
    kept = [o for o in overrides if not o.startswith(("tune.storage=", "tune.write="))]
    return [*kept, f"tune.storage={STORAGE}", f"out=build/tune/{target}"]


def _main(argv: Sequence[str]) -> int:
    if not 1 <= len(argv) <= 2 or (len(argv) == 2 and not argv[1].isdecimal()):
        raise ConfigError("usage: python -m tilewise.cli.models.tune TARGET [TRIALS]; see `make help`")
    overrides = study_overrides(argv[0], int(argv[1]) if len(argv) == 2 else None)
    print(f"tilewise train {shlex.join(overrides)}", flush=True)
    return run_tilewise(["train", *overrides])


if __name__ == "__main__":
    raise SystemExit(reporting_errors(lambda: _main(sys.argv[1:])))
