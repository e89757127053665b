"""Code that runs in a process of its own, so that its imports, initialisation and forks stay there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import tilewise


def compiling(cache: Path) -> dict[str, str]:
    """Return the environment of a process in which Triton compiles into `cache`; the tests themselves interpret."""
    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}


def run_alone(code: str, **environment: str) -> None:
    """Run dedented `code` with the package and the tests on its path; its stderr is the message where it fails."""
    paths = os.pathsep.join(map(str, (Path(tilewise.__file__).parents[1], Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **environment, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
