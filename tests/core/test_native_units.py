"""The unit tests in C, compiled with the address and undefined-behaviour sanitizers where the compiler has them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "src" / "tilewise" / "core"
COMPILER = shlex.split(os.environ.get("CC", "cc"))
FLAGS = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
UNITS = ("bytecode", "text")

pytestmark = pytest.mark.skipif(shutil.which(COMPILER[0]) is None, reason="there is no C compiler")


def names(unit: str) -> list[str]:
    """Return the names in the unit's table of tests."""
    table = (HERE / f"test_{unit}.c").read_text().partition("TESTS[] = {")[2]
    return re.findall(r'\{"([^"]+)", test_\w+\}', table)


@cache
def sanitizers(folder: Path) -> tuple[str, ...]:
    """Return the flags of the sanitizers, or nothing where a program with them does not run."""
    source, program = folder / "probe.c", folder / "probe"
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run([*COMPILER, *SANITIZERS, source, "-o", program], capture_output=True, check=False)
    runs = built.returncode == 0 and subprocess.run([program], capture_output=True, check=False).returncode == 0
    return SANITIZERS if runs else ()


@cache
def driver(unit: str, folder: Path) -> Path:
    """Return the compiled driver of one unit."""
    program = folder / unit
    sources = [str(HERE / f"test_{unit}.c"), str(CORE / f"{unit}.c")]
    command = [*COMPILER, *FLAGS, *sanitizers(folder), *sources, "-o", str(program), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("units")


@pytest.mark.long
@pytest.mark.parametrize(("unit", "name"), [(unit, name) for unit in UNITS for name in names(unit)])
def test_unit(unit: str, name: str, folder: Path) -> None:
    done = subprocess.run([driver(unit, folder), name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
