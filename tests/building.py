"""Distributions of the package, and commands in environments that they are installed in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(command: Sequence[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without this process's settings of Python and tilewise."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWISE_", "PYTHON"))}
    return subprocess.run(
        [str(c) for c in command],
        cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def done(command: Sequence[str | Path], cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, and return its output."""
    finished = run(command, cwd, **environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def build(source: Path, kind: str, out: Path, environment: Mapping[str, str]) -> Path:
    """Build a ``wheel`` or ``sdist``, and return its file."""
    done([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out], source, **environment)
    (built,) = out.iterdir()
    return built
