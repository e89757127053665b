"""Libraries of CK Tile's kernels are built from a checkout: by its generator and compiler, once for equal contents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from capi.client import needs_compiler
from collect.building.checkout import commands, compiled_names, make_checkout, make_compiler
from kernels.ck.lines import KINDS
from kernels.ck.stubs import gemm_name
from tilewise.collect.building import BuildSettings, Built, Checkout, Compiler, build_libraries, unbuildable_reason
from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.kernels.ck import (
    LIBRARY_TYPES,
    AnyInstance,
    CkLibraries,
    ConfHeader,
    convert_conf,
    link_manifest,
    parse_instance_string,
)
from tilewise.ops import GemmProblem, GroupedConvProblem

pytestmark = needs_compiler

SHAPE = "warp_m=2,warp_n=2,warp_k=1,warp_tile_m=32,warp_tile_n=32,warp_tile_k=16,epilogue=cshuffle"
WIDTHS = "vector_a=4,vector_b=8,vector_c=8"
CONV = f"grouped_conv_forward_bf16_2d_128x128x64_compv4_intrawave_dsb[{SHAPE},{WIDTHS},layout=nhwgc]"
CONV_3D = f"grouped_conv_bwd_data_bf16_3d_64x64x64_compv3_intrawave[{SHAPE},layout=ndhwgc]"
GEMM, STREAMK = gemm_name(32), f"{gemm_name(16)}_streamk_tree"


class Toolchain:
    """A checkout, a stub compiler and its log."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "log"
        self.checkout, self.compiler = make_checkout(folder / "ck"), make_compiler(folder)
        monkeypatch.setenv("STUB_LOG", str(self.log))

    def settings(self, **changes: object) -> BuildSettings:
        found = BuildSettings(
            Checkout.open(self.checkout), Compiler.find(str(self.compiler)), "gfx942", self.folder / "cache", 2
        )
        return replace(found, **changes)  # type: ignore[arg-type]

    def build(self, *texts: str, out: str = "out", **changes: object) -> list[Built]:
        instances = [parse_instance_string(text) for text in texts]
        return list(build_libraries(instances, self.settings(**changes), self.folder / out).built)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    return Toolchain(tmp_path, monkeypatch)


def test_each_instance_becomes_a_library_that_runs_it(tools: Toolchain) -> None:
    built = tools.build(CONV, CONV_3D, GEMM, STREAMK)
    assert [b.error for b in built] == [""] * 4
    assert [b.name for b in built] == [parse_instance_string(t).name for t in (CONV, CONV_3D, GEMM, STREAMK)]
    problem = GroupedConvProblem(N=1, C=8, K=8, G=1, Hi=4, Wi=4, Y=1, X=1)
    with LIBRARY_TYPES["grouped_conv"].open(built[0].path or "") as library:
        reported = library.select_kernel(problem, "forward")
    assert reported == "grouped_conv_fwd_bf16_nhwgc_2d_compv4_cshuffle_intrawave_128x128x64_2x2x1_32x32x16_dsb"
    with LIBRARY_TYPES["gemm"].open(built[3].path or "") as library:
        assert str(library.select_kernel(GemmProblem(4, 4, 4), "universal")).endswith("16x16x16_streamk_tree")


def test_the_compiler_gets_the_commands_of_cks_own_tools(tools: Toolchain) -> None:
    tools.build(CONV)
    probe, compiling, linking = commands(tools.log)
    assert probe[0] == "--offload-arch=gfx942"
    for flag in ("-DCK_TILE_SINGLE_KERNEL_INCLUDE", "-D__HIP_PLATFORM_AMD__", '-DGFX_ARCH="gfx942"', "-fPIC"):
        assert flag in compiling
    assert compiling[-3:] == ["conv_ctypes_lib.cpp", "-o", "kernel.o"]
    assert linking == [
        "-shared", "-fPIC", "--offload-arch=gfx942", "--hip-link", "kernel.o", "libck_tile_dispatcher.a", "-o",
        "library.so",
    ]  # fmt: skip
    text = (tools.folder / "out/logs" / f"{parse_instance_string(CONV).name}.log").read_text()
    assert "--tile-m 128 --tile-n 128 --tile-k 64 --warp-m 2" in text
    assert "generated grouped_conv_fwd_bf16" in text


@pytest.mark.long
def test_equal_contents_are_built_once(tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tools.build(GEMM, CONV)
    again = tools.build(GEMM, CONV, out="elsewhere")
    assert [b.from_cache for b in first + again] == [False, False, True, True]
    assert [b.path.read_bytes() for b in first if b.path] == [b.path.read_bytes() for b in again if b.path]
    assert len(compiled_names(tools.log)) == 2
    moved = tools.checkout.rename(tools.folder / "moved")  # the place is no part of the contents
    tools.checkout = moved
    assert tools.build(GEMM)[0].from_cache
    (moved / "include/ck_tile/core.hpp").write_text("// changed\n")
    assert not tools.build(GEMM)[0].from_cache
    monkeypatch.setenv("STUB_VERSION", "other")
    assert not tools.build(GEMM)[0].from_cache
    assert not tools.build(GEMM, arch="gfx950")[0].from_cache


def test_a_damaged_cache_entry_is_built_again(tools: Toolchain) -> None:
    tools.build(GEMM)
    (library,) = (tools.folder / "cache").glob("*/library.so")
    library.write_bytes(b"damaged")
    (built,) = tools.build(GEMM)
    assert not built.from_cache
    assert built.path is not None
    assert built.path.read_bytes()[:4] == b"\x7fELF"


def test_a_failed_kernel_has_its_reason_and_the_others_are_built(
    tools: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAIL", "grouped_conv")
    settings = tools.settings()
    report = build_libraries([parse_instance_string(t) for t in (CONV, GEMM)], settings, tools.folder / "out")
    failed, other = report.built
    assert failed.path is None
    assert other.path is not None
    assert "compiling failed" in failed.error
    assert "error: static assertion failed: no such pipeline" in failed.error
    assert "in file included from x" in failed.log.read_text()
    with pytest.raises(LibraryError, match=r"1 of 2 kernels were not built, e\.g\. grouped_conv_.*same command builds"):
        report.require_all()
    monkeypatch.delenv("STUB_FAIL")
    assert [b.from_cache for b in tools.build(CONV, GEMM)] == [False, True]


@pytest.mark.long
def test_a_command_that_hangs_is_killed(tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SLEEP", "60")
    (built,) = tools.build(GEMM, timeout_s=2.0)
    assert built.error == "compiling failed: it ran out of time; raise ck.timeout_s"


@pytest.mark.long
def test_a_killed_build_goes_on(tools: Toolchain) -> None:
    texts = [gemm_name(tile) for tile in (16, 32, 64)]
    settings = f"Checkout.open({str(tools.checkout)!r}), Compiler.find({str(tools.compiler)!r}), 'gfx942'"
    code = (
        "from pathlib import Path; from tilewise.collect.building import *; "
        "from tilewise.kernels.ck import parse_instance_string as read; "
        f"build_libraries([read(t) for t in {texts!r}], "
        f"BuildSettings({settings}, Path({str(tools.folder / 'cache')!r}), 1), Path({str(tools.folder / 'out')!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "STUB_SLEEP": "0.5"})
    while len(compiled_names(tools.log)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [b.from_cache for b in tools.build(*texts)] == [True, False, False]
    assert not [*(tools.folder / "cache").glob(".build-*")]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("dispatcher/build/libck_tile_dispatcher.a", "--target ck_tile_dispatcher"),
        ("dispatcher/bindings/ctypes/gemm_ctypes_lib.cpp", "its dispatcher lacks this kind of kernel"),
        ("dispatcher/codegen/unified_gemm_codegen.py", "older or newer than the dispatcher"),
    ],
)
def test_a_checkout_without_a_file_says_which(tools: Toolchain, missing: str, message: str) -> None:
    (tools.checkout / missing).unlink()
    with pytest.raises(ConfigError, match=f"{missing} is missing; .*{message}"):
        tools.build(GEMM)


def test_a_toolchain_that_cannot_work_is_one_error(tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"is not a checkout of Composable Kernel: .* give ck\.checkout=FOLDER"):
        Checkout.open(tools.folder)
    with pytest.raises(
        ConfigError, match=r"there is no no-hipcc on PATH or in /opt/rocm/bin; give the compiler's path"
    ):
        Compiler.find("no-hipcc")
    with pytest.raises(ConfigError, match=r"does not build for gfx908: .*invalid target ID 'gfx908'"):
        tools.build(GEMM, arch="gfx908")
    monkeypatch.setenv("STUB_MISSING", "libamdhip64.so.7")
    with pytest.raises(ConfigError, match=r"libamdhip64\.so\.7 was not found; add its folder, .* to LD_LIBRARY_PATH"):
        tools.build(GEMM)


def test_the_joint_repository_is_a_checkout_too(tools: Toolchain) -> None:
    joint = tools.folder / "rocm-libraries/projects"
    joint.mkdir(parents=True)
    inner = tools.checkout.rename(joint / "composablekernel")
    assert Checkout.open(joint.parent).root == inner.resolve()


def test_another_build_holds_the_cache(tools: Toolchain) -> None:
    from tilewise.files import locked

    with locked(tools.folder / "cache/lock"), pytest.raises(ConfigError, match="another build uses"):
        tools.build(GEMM)


def _converted(kind: str) -> AnyInstance:
    return convert_conf(KINDS[kind], ConfHeader()).instances[0]


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        (_converted("depthwise"), "builds depthwise kernels in sets only"),
        (_converted("stream_k"), "builds stream-K convolutions in sets only"),
        (_converted("explicit"), "no option for explicit_gemm"),
        (_converted("bwd_data_long"), "no option for filter1x1_stride1_pad0"),
        (parse_instance_string(CONV.replace("_dsb", "_dsb_si")), "no option for store_immediate"),
        (parse_instance_string(CONV.partition("[")[0]), "its warps and warp tile are not stated"),
        (parse_instance_string(f"{GEMM}_splitk2"), "a split of K is an argument of a launch"),
        (parse_instance_string(f"{GEMM}_vec8_8_8"), "no option for the vector widths"),
        (parse_instance_string(f"{GEMM}_d1"), "the suffix d1 has further operands"),
        (parse_instance_string(GEMM), None),
        (_converted("forward_v3"), None),
    ],
)
def test_instances_that_the_generator_cannot_express_are_refused(instance: AnyInstance, reason: str | None) -> None:
    found = unbuildable_reason(instance)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_instances_of_one_name_are_refused(tools: Toolchain) -> None:
    with pytest.raises(KernelError, match=r"two instances have the name .*; choose one with filter="):
        tools.build(CONV, CONV.replace("vector_a=4", "vector_a=8"))


def test_a_manifest_is_an_instance_library(tools: Toolchain) -> None:
    other = CONV.replace("128x128x64_compv4", "64x128x64_compv4")
    tools.build(CONV, other)
    out = tools.folder / "out"
    manifest = link_manifest(out)
    values = json.loads(manifest.path.read_text())
    assert (values["op"], values["variant"], values["dtype"], values["arch"]) == (
        "grouped_conv", "forward", "bf16", "gfx942",
    )  # fmt: skip
    assert sorted(row["instance"] for row in values["libraries"]) == sorted([CONV, other])
    document = json.loads((out / "instances.json").read_text())  # as CK's profiler reads it
    assert sorted(row["tile_m"] for row in document["instances"]) == [64, 128]
    assert set(CkLibraries.find("grouped_conv", str(manifest.path)).files) == set(out.glob("*.so"))
    library = next(out.glob("*.so"))
    library.write_bytes(b"other")
    with pytest.raises(ConfigError, match=f"{library.name} is missing, or is not the library of manifest.json"):
        CkLibraries.find("grouped_conv", str(manifest.path))
    with pytest.raises(LibraryError, match=r"is not the library that .* describes; build it again"):
        link_manifest(out)
    library.with_suffix(".json").unlink()
    with pytest.raises(LibraryError, match=r"has no record .* build it with `tilewise ck build`"):
        link_manifest(out)


def test_an_instance_library_is_of_one_target(tools: Toolchain) -> None:
    tools.build(CONV, GEMM)
    with pytest.raises(LibraryError, match=r"of one target, got gemm_universal_fp16_gfx942, grouped_conv_forward_bf16"):
        link_manifest(tools.folder / "out")
    with pytest.raises(LibraryError, match=r"has no \*\.so file"):
        link_manifest(tools.folder)


@pytest.mark.parametrize("row", [{"file": "../x.so", "sha256": ""}, {"file": "x.so"}, "x.so"])
def test_a_manifest_from_outside_is_checked(row: object, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"version": 1, "libraries": [row]}))
    with pytest.raises(ConfigError, match=r"libraries lie beside their manifest|is not the manifest"):
        CkLibraries.find("gemm", str(path))
