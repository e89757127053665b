"""Many processes meet a new key at once: one measures, the others wait, and all choose alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotuning import kernels
from autotuning.kernels import lines, sleeper
from tilewise.files import locked


def _start(log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, kernels.__file__, str(log), "5"], stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_one_of_many_processes_measures_and_all_choose_alike(tmp_path: Path) -> None:
    processes = [_start(tmp_path / f"log{i}") for i in range(4)]
    assert [p.communicate(timeout=120)[0] for p in processes] == ["0\n"] * 4
    assert sorted(len(lines(tmp_path / f"log{i}")) > 1 for i in range(4)) == [False, False, False, True]


def test_without_waiting_the_default_runs_while_another_process_measures(tmp_path: Path) -> None:
    tuned = sleeper(tmp_path / "log", wait=False)
    cache = tmp_path / "tilewise-cache"
    tuned.choose(5)
    (record,) = cache.rglob("*.json")
    record.unlink()
    with locked(record.with_suffix(".lock")):
        choice = tuned.choose(5)
    assert (choice.why, choice.configuration.arguments, choice.lasting) == ("default", {"delay": 20}, False)
    assert tuned.choose(5).why == "measured"


@pytest.mark.long
def test_all_ranks_take_the_choice_of_the_rank_that_asks_first(tmp_path: Path) -> None:
    code = f"""
import os, sys
import torch.distributed as dist
from autotuning.kernels import recorded
rank = int(sys.argv[1])
os.environ["TILEWISE_CACHE"] = f"{tmp_path}/cache{{rank}}"  # each rank has a disk of its own
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=3)
times = {{1: 1.0 + (rank == 1), 2: 1.5, 3: 1.0 + (rank != 2)}}  # ranks measure differently
tuned = recorded(times)
print([tuned(n) for n in (4, 5, 6)], flush=True)
dist.barrier()
"""
    command = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=env) for rank in range(3)
    ]
    answers = {p.communicate(timeout=120)[0] for p in processes}
    assert len(answers) == 1
    assert all(p.returncode == 0 for p in processes)
