"""The HIP compiler: where it is, its version, and whether it builds for an arch."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from tilewise.errors import ConfigError

_ROCM = "/opt/rocm"
_PROBE_S = 60.0
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (\S+):")
_SHOWN = 400  # characters of a tool's output in an error


@dataclass(frozen=True)
class Outcome:
    """The end of a command: its exit status, None if it ran out of time; and all that it printed."""

    status: int | None
    output: str

    @property
    def failed(self) -> bool:
        """True unless the command succeeded."""
        return self.status != 0

    def reason(self) -> str:
        """Return a line that says why the command failed, with a remedy where the cause is known."""
        if self.status is None:
            return "it ran out of time; raise ck.timeout_s"
        if missing := _MISSING_LIBRARY.search(self.output):
            return f"{missing[1]} was not found; add its folder, e.g. {_ROCM}/lib, to LD_LIBRARY_PATH"
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [f"exit status {self.status}, without a message"])[0][:_SHOWN]


def run_command(command: Sequence[str], timeout_s: float, folder: Path | None = None) -> Outcome:
    """Run a command in a process group of its own, which is killed when the time is over."""
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, text=True, errors="replace",
        )  # fmt: skip
    except OSError as e:
        return Outcome(127, f"{command[0]} cannot be started: {e.strerror}")
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return Outcome(process.returncode, output)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return Outcome(None, process.communicate()[0])
    finally:
        _running.discard(process)


_running: set[subprocess.Popen[str]] = set()


def kill_running() -> None:
    """Kill the commands of all threads; a terminal's interrupt does not reach them in their own process groups."""
    for process in tuple(_running):
        _kill_group(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Compiler:
    """A compiler that works.

    Attributes:
        path: its file.
        version: all that ``--version`` prints.
    """

    path: str
    version: str

    @classmethod
    def find(cls, name: str) -> Self:
        """Find a compiler, by its path or by a name on PATH or in ROCm's folder, and ask it for its version.

        Raises:
            ConfigError: there is no such compiler, or it does not start.
        """
        path = shutil.which(name) or shutil.which(name, path=f"{_ROCM}/bin")
        if path is None:
            raise ConfigError(f"ck.compiler: there is no {name} on PATH or in {_ROCM}/bin; give the compiler's path")
        asked = run_command([path, "--version"], _PROBE_S)
        if asked.failed:
            raise ConfigError(f"ck.compiler: {path} --version fails: {asked.reason()}")
        return cls(path, asked.output)

    def require_arch(self, arch: str) -> None:
        """Compile an empty file for an arch, so that a missing target is one error and not one for each kernel.

        Raises:
            ConfigError: the compiler does not build for the arch.
        """
        with TemporaryDirectory() as scratch:
            source = Path(scratch, "probe.cpp")
            source.write_text("int main() { return 0; }\n")
            command = [self.path, f"--offload-arch={arch}", "-c", str(source), "-o", str(source.with_suffix(".o"))]
            probed = run_command(command, _PROBE_S)
        if probed.failed:
            raise ConfigError(
                f"{self.path} does not build for {arch}: {probed.reason()}; "
                "install ROCm with this target, or give another ck.compiler"
            )
