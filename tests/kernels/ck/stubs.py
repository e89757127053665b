"""Shared libraries with CK Tile's C API for tests: stub.c, compiled with the behaviour that a test needs."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from capi.client import CC, needs_compiler
from core.compiled import stumps
from small_model import altered, write_model
from tilewise.arch import load_arch
from tilewise.capi import build, export_model
from tilewise.capi._build import INCLUDE
from tilewise.features import feature_table
from tilewise.kernels import Pool
from tilewise.kernels.ck import parse_name
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Target

__all__ = ["conv_name", "gemm_name", "log_of", "model_of", "needs_compiler", "stub"]


def gemm_name(tile: int = 16, *, dtype: str = "fp16", layout: str = "rcr", pads: bool = False) -> str:
    """Return the name of a kernel that differs from others in its tile."""
    flags = "_".join([str(pads)] * 3 + ["False"])
    tiles = f"{tile}x16x16_1x1x1_16x16x16"
    return f"gemm_universal_{dtype}_{layout}_compv3_cshuffle_intrawave_{flags}_{tiles}"


def conv_name(tile: int = 16, *, variant: str = "forward", dtype: str = "fp16") -> str:
    return f"grouped_conv_{variant}_{dtype}_2d_{tile}x64x64_compv3_intrawave"


def stub(folder: Path, file: str, name: str | None = None, **macros: object) -> Path:
    """Compile a library with a kernel of this name; the other arguments are macros of stub.c."""
    texts = {key: f'"{text}"' for key, text in {"NAME": name, "DTYPE": macros.pop("DTYPE", None)}.items() if text}
    path = folder / f"{file}.so"
    path.write_bytes(_compiled(tuple(f"-D{key}={value}" for key, value in {**texts, **macros}.items())))
    return path


@cache
def _compiled(defines: tuple[str, ...]) -> bytes:
    library, source = build(), Path(__file__).with_name("stub.c")
    linked = [str(library), f"-Wl,-rpath,{library.parent.resolve()}"]
    flags = [str(CC), "-std=gnu11", "-O1", "-fPIC", "-shared", f"-I{INCLUDE}", *defines, str(source), *linked]
    with TemporaryDirectory() as scratch:
        subprocess.run([*flags, "-o", f"{scratch}/stub.so"], check=True)
        return Path(scratch, "stub.so").read_bytes()


def model_of(folder: Path, *names: str) -> tuple[TrainedModel, Path]:
    """Write an arbitrary model that chooses between these kernels, and export it for tilewise's own library."""
    parsed = [parse_name(name) for name in names]
    target = Target(parsed[0].op, parsed[0].variant, parsed[0].dtype, "gfx942")
    table = feature_table(target.op)
    model = altered(
        load_artefact(write_model(folder / "model", trees=4)),
        target=target,
        pool=Pool(target.op, target.variant, target.dtype, tuple(name.kernel for name in parsed)),
        arch=load_arch(target.arch),
        features=table,
        scores=stumps(len(table.names), 3.0),
        scale=None,
        cost_model=None,
        shortlist=0,
    )
    export_model(model, folder / "model.twm")
    return model, folder / "model.twm"


def log_of(path: Path) -> list[tuple[str, str, int]]:
    """Return the calls that stubs wrote to the file named by CK_STUB_LOG: (init or cleanup, kernel, process)."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, name, int(process)) for what, name, process in map(str.split, lines)]
