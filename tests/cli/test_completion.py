"""Completion: candidates for a line, and the script as bash runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tilewise.cli._completion import candidates, complete
from tilewise.cli._verbs import VERBS
from tilewise.cli.main import main
from tilewise.errors import UsageError


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("tilewise ", {f"{verb} " for verb in VERBS} | {"completion "}),
        ("tilewise re", {"registry "}),
        ("tilewise completion ", {"bash ", "fish ", "zsh "}),
        ("tilewise data d", {"describe ", "data=", "dtype="}),
        ("tilewise registry show --j", {"--json "}),
        ("tilewise train tar", {"target="}),
        ("tilewise train arch=g", {"arch=gfx90a ", "arch=gfx942 ", "arch=gfx950 "}),
        ("tilewise train model.num", {"model.num_leaves="}),
        ("tilewise train tune.space.num", {"tune.space.num_leaves="}),
        ("tilewise train seed=1 tuned=", {"tuned=none "}),
        ("tilewise collect collect.partial=", {"collect.partial=true ", "collect.partial=false "}),
        ("tilewise train n_splits=", {"n_splits=5 "}),
        ("tilewise train target=gemm_universal_bf16_", {"target=gemm_universal_bf16_sm90 "}),
        ("tilewise evaluate data=fo", {"data=folder/"}),
        ("tilewise evaluate data=folder/", {"data=folder/a.parquet "}),
    ],
)
def test_candidates(line: str, some: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.parquet").touch()
    assert some <= candidates(line)


@pytest.mark.parametrize("line", ["tilewise select model.", "tilewise registry filt", "tilewise nonsense "])
def test_keys_that_the_verb_does_not_read_are_not_proposed(line: str) -> None:
    assert candidates(line) == set()


def test_an_unknown_shell_is_refused() -> None:
    with pytest.raises(UsageError, match="completion needs a shell, one of bash, zsh, fish; got 'tcsh'"):
        complete(["tcsh"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_sound(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "tilewise completion query" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("tilewise reg", ["registry "]),
        ("tilewise train arch=gfx", ["gfx90a ", "gfx942 ", "gfx950 "]),  # bash breaks the word at "="
        ("tilewise train model.num_le", ["model.num_leaves="]),
    ],
)
def test_bash_completes(line: str, replies: list[str], tmp_path: Path) -> None:
    command = tmp_path / "tilewise"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewise "$@"\n')
    command.chmod(0o755)
    run = (
        'eval "$(tilewise completion bash)"; COMP_LINE=$1 COMP_POINT=${#1} _tilewise; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", run, "bash", line], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == replies
