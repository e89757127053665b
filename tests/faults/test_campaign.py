"""A few schedules of faults; ``make campaign`` runs many."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="faults are injected on Linux"),
]


@pytest.mark.parametrize(
    ("scenario", "schedules"),
    [("collect", 20), ("ingest", 10), ("caches", 20), ("artefact", 10), ("refresh", 4), ("registry", 2)],
)
def test_every_invariant_holds(scenario: str, schedules: int) -> None:
    command = [sys.executable, "-m", "benchmarks.robustness.campaign", "--scenario", scenario]
    done = subprocess.run(
        [*command, "--schedules", str(schedules)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"'schedules': {schedules}, 'broken': 0" in done.stdout
