"""Code in a process of its own: what it imports, initialises and forks is its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import tilewise


def run_alone(code: str, **environment: str) -> None:
    """Run dedented `code` with the package and the tests on its path; its stderr is the message where it fails."""
    paths = os.pathsep.join(map(str, (Path(tilewise.__file__).parents[1], Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **environment, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
