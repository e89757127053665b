"""One process of the stress test: it writes its models, says that it is ready, and after a line begins to promote.

Like a person, it tries again after an error that says that the registry cannot be reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from registry.stress import READY, Outcome, promote_one, write_models
from small_model import table
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import registry_session

_ATTEMPTS = 10


def main(uri: str, folder: str, *numbers: str) -> None:
    """Promote the models of these numbers, one after the other; print all outcomes as one line of JSON."""
    models = write_models(Path(folder) / "models", map(int, numbers))
    table()
    with registry_session(uri):
        print(READY, flush=True)
        sys.stdin.readline()
        told = [asdict(outcome) for model in models for outcome in _promote(model, Path(folder) / "reports")]
    print(json.dumps(told))


def _promote(model: str, reports: Path) -> Iterator[Outcome]:
    for _ in range(_ATTEMPTS):
        try:
            yield promote_one(model, reports)
            return
        except RegistryUnavailableError as e:
            yield Outcome(Path(model).name, str(e), None)
    raise AssertionError(f"{model}: the registry cannot be reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
