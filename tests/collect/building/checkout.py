"""A checkout of Composable Kernel with a stub generator, and a stub of its compiler.

Both are small programs with the real command lines. The compiler appends its arguments to the file that STUB_LOG names,
and links a real shared library with CK Tile's C API: tests/kernels/ck/stub.c, compiled by the host's compiler.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

from capi.client import CC
from tilewise.capi import build
from tilewise.capi._build import INCLUDE

STUB = Path(__file__).parents[2] / "kernels" / "ck" / "stub.c"

GENERATOR = """
import argparse, json, sys
from pathlib import Path

p = argparse.ArgumentParser()
for name in "output datatype variant ndim arch tile-m tile-n tile-k warp-m warp-n warp-k warp-tile-m".split():
    p.add_argument("--" + name)
for name in "warp-tile-n warp-tile-k pipeline scheduler epilogue num-groups-to-merge num-wave-groups".split():
    p.add_argument("--" + name)
for name in "double-smem-buffer vector-a vector-b vector-c layout gpu-target variants tile-config-json".split():
    p.add_argument("--" + name)
p.add_argument("--output-dir")
p.add_argument("--two-stage", action="store_true")
p.add_argument("--split-image", action="store_true")
a = p.parse_args()
if a.tile_config_json:
    config = json.loads(a.tile_config_json)
    t, r = ({k: v[0] for k, v in config[c].items()} for c in ("tile_config", "trait_config"))
    sizes = "_".join("x".join(str(t[f"{part}_{x}"]) for x in "mnk") for part in ("tile", "warp", "warp_tile"))
    flags = "_".join(str(r[f]) for f in ("pad_m", "pad_n", "pad_k", "persistent"))
    name = f"gemm_{a.datatype}_{a.layout}_{r['pipeline']}_{r['epilogue']}_{r['scheduler']}_{flags}_{sizes}"
    if a.variants == "stream_k":
        strategy = config["streamk_config"]["reduction_strategy"][0]
        name += "_streamk" if strategy == "atomic" else f"_streamk_{strategy}"
    symbol, folder = "KERNEL_NAME", Path(a.output_dir)
else:
    short = {"forward": "fwd"}.get(a.variant, a.variant)
    tile, warps, inner = (f"{m}x{n}x{k}" for m, n, k in (
        (a.tile_m, a.tile_n, a.tile_k), (a.warp_m, a.warp_n, a.warp_k), (a.warp_tile_m, a.warp_tile_n, a.warp_tile_k)))
    layout = "ndhwgc" if a.ndim == "3" else "nhwgc"
    name = f"grouped_conv_{short}_{a.datatype}_{layout}_{a.ndim}d_{a.pipeline}_{a.epilogue}_{a.scheduler}_{tile}_"
    name += f"{warps}_{inner}" + "_dsb" * (a.double_smem_buffer == "true")
    symbol, folder = f"CONV_{short.upper()}_KERNEL_NAME", Path(a.output)
folder.mkdir(parents=True, exist_ok=True)
(folder / f"{name}.hpp").write_text(f'constexpr const char* {symbol} = "{name}";\\n')
print("generated", name)
"""

COMPILER = """
import json, os, re, subprocess, sys, time
from pathlib import Path

arguments = sys.argv[1:]
if os.environ.get("STUB_MISSING"):
    sys.exit(f"hipcc: error while loading shared libraries: {os.environ['STUB_MISSING']}: cannot open it")
if arguments == ["--version"]:
    print("HIP version: 7.1.0", os.environ.get("STUB_VERSION", ""))
    sys.exit(0)
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(json.dumps(arguments) + "\\n")
arch = next(a for a in arguments if a.startswith("--offload-arch=")).partition("=")[2]
if arch not in ("gfx942", "gfx950"):
    sys.exit(f"clang++: error: invalid target ID '{arch}'")
output = Path(arguments[arguments.index("-o") + 1])
if "-include" in arguments:
    include = Path(arguments[arguments.index("-include") + 1])
    text = include.read_text()
    for name in re.findall(r'#include "(.*)"', text):
        text += (include.parent / name).read_text()
    name = re.search(r'KERNEL_NAME = "(.*)"', text)[1]
    time.sleep(float(os.environ.get("STUB_SLEEP", "0")))
    if os.environ.get("STUB_FAIL", "never") in name:
        sys.exit(f"in file included from x\\n{include}:1: error: static assertion failed: no such pipeline")
    output.write_text(name)
elif "-shared" in arguments:
    name = Path(next(a for a in arguments if a.endswith(".o"))).read_text()
    direction = [kind in name for kind in ("_fwd_", "_bwd_data_", "_bwd_weight_")]
    defines = [f'-DNAME="{name}"', f"-DTILE={os.environ.get('STUB_TILE', '1')}"]
    if name.startswith("grouped_conv"):
        defines += ["-DCONV=1", f"-DDIRECTION={direction.index(True)}", "-DFITS=1"]
    sys.exit(subprocess.run([*BUILD, *defines, "-o", str(output)]).returncode)
else:
    output.write_text("")
"""


def make_checkout(folder: Path) -> Path:
    """Write a checkout with stub generators into a folder."""
    dispatcher = folder / "dispatcher"
    for place in ("include/ck_tile", "dispatcher/include", "dispatcher/codegen", "dispatcher/bindings/ctypes"):
        (folder / place).mkdir(parents=True)
    (folder / "include/ck_tile/core.hpp").write_text("// core\n")
    for name in ("unified_gemm_codegen.py", "unified_grouped_conv_codegen.py"):
        (dispatcher / "codegen" / name).write_text(GENERATOR)
    for name in ("gemm_ctypes_lib.cpp", "streamk_gemm_ctypes_lib.cpp", "conv_ctypes_lib.cpp"):
        (dispatcher / "bindings/ctypes" / name).write_text(f"// {name}\n")
    (dispatcher / "build").mkdir()
    (dispatcher / "build/libck_tile_dispatcher.a").write_bytes(b"!<arch>\n")
    return folder


def make_compiler(folder: Path) -> Path:
    """Write the stub compiler into a folder."""
    library = build()
    command = [
        str(CC), "-std=gnu11", "-O0", "-fPIC", "-shared", f"-I{INCLUDE}", str(STUB), str(library),
        f"-Wl,-rpath,{library.parent.resolve()}",
    ]  # fmt: skip
    path = folder / "hipcc"
    path.write_text(f"#!{sys.executable}\nBUILD = {json.dumps(command)}\n{COMPILER}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def compiled_names(log: Path) -> list[str]:
    """Return the objects that the stub compiler was told to make from kernels, in order."""
    calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [call[call.index("-include") + 1] for call in calls if "-include" in call]


def commands(log: Path) -> list[list[str]]:
    """Return the arguments of each call of the stub compiler, with the folders of builds left out."""
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    return [[Path(a).name if a.startswith(os.sep) else a for a in call] for call in calls]
