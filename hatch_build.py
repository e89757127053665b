"""Build hook that compiles the native core with the package. If that fails, the package is installed without it.

NumPy then computes the same, more slowly. ``TILEWISE_BUILD=require`` makes a failure fatal.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CORE = Path("src/tilewise/core")
BuildData: TypeAlias = dict[str, Any]  # hatchling's own type
# -ffp-contract=off: results must not depend on whether the processor has a fused multiply-add
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


class CoreBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiler of `src/tilewise/core/*.c` into one extension module."""

    def initialize(self, version: str, build_data: BuildData) -> None:
        """Compile in place for an editable install, otherwise into the wheel."""
        name = "_core" + sysconfig.get_config_var("EXT_SUFFIX")
        in_place = version == "editable"
        folder = Path(self.root) / CORE if in_place else Path(tempfile.mkdtemp(prefix="tilewise-core-"))
        try:
            compile_core(Path(self.root) / CORE, folder / name)
        except (OSError, ImportError, subprocess.SubprocessError) as e:
            if os.environ.get("TILEWISE_BUILD") == "require":
                raise
            (folder / name).unlink(missing_ok=True)  # an older one may not match the Python sources
            self.app.display_warning(f"the native core was not compiled, so NumPy will rank: {_reason(e)}")
            return
        if not in_place:
            build_data["force_include"][str(folder / name)] = f"tilewise/core/{name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def compile_core(sources: Path, out: Path) -> None:
    """Compile the core for this interpreter and replace `out` atomically.

    Raises:
        OSError: there is no compiler.
        ImportError: NumPy is not installed.
        subprocess.SubprocessError: the compiler fails.
    """
    import numpy as np

    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    include = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    fresh = out.with_suffix(".tmp")
    command = [*compiler, *FLAGS, *include, *map(str, sorted(sources.glob("*.c"))), "-o", str(fresh), "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(out)
    finally:
        fresh.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or str(error)
    return " ".join(str(output).split())[-300:]


if __name__ == "__main__":  # python hatch_build.py: compile in place, after a change
    compile_core(CORE, CORE / ("_core" + sysconfig.get_config_var("EXT_SUFFIX")))
    print(f"compiled for Python {sys.version_info.major}.{sys.version_info.minor}")
