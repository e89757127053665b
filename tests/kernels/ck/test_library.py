"""The client of CK Tile's C libraries, tested on tilewise's own library and on small ones that misbehave."""

from __future__ import annotations

import ctypes
import logging
import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from alone import run_alone
from capi.client import CC
from kernels.ck.stubs import conv_name, gemm_name, log_of, needs_compiler, stub
from tilewise.capi import build
from tilewise.capi._build import INCLUDE
from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.kernels.ck.libraries._conv_library import ConvLibrary, ConvProblemC
from tilewise.kernels.ck.libraries._gemm_library import GemmLibrary
from tilewise.kernels.ck.libraries._library import close_all
from tilewise.ops import GemmProblem, GroupedConvProblem

pytestmark = needs_compiler
GEMM = GemmProblem(32, 16, 48)
CONV = GroupedConvProblem(2, 16, 32, 2, 5, 6, 3, 3, pad_h=1, stride_w=2)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CK_STUB_LOG", str(tmp_path / "calls.log"))
    return tmp_path / "calls.log"


def gemm_arrays(p: GemmProblem = GEMM) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A by row and B by column, both of integers, and memory for C."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((p.M, p.K), (p.N, p.K)))
    return a, b, np.full((p.M, p.N), np.nan, dtype=np.float16)


def pointers(*arrays: np.ndarray) -> list[int]:
    return [array.ctypes.data for array in arrays]


def run_gemm(library: GemmLibrary, p: GemmProblem = GEMM) -> np.ndarray:
    a, b, c = gemm_arrays(p)
    assert library.run(p, "universal", pointers(a, b), c.ctypes.data) > 0
    assert np.array_equal(c, a @ b.T)
    return c


class TestGemm:
    def test_a_library_reports_its_kernels_and_runs_one(self, tmp_path: Path) -> None:
        with GemmLibrary.open(stub(tmp_path, "one", gemm_name(16), MS=0.25)) as library:
            assert library.kernel_count == 1
            assert library.kernel_names() == (gemm_name(16),)
            assert library.select_kernel(GEMM, "universal") == gemm_name(16)
            assert not library.is_supported(GemmProblem(32, 16, 47), "universal")
            assert library.select_kernel(GemmProblem(32, 16, 47), "universal") is None
            run_gemm(library)

    def test_a_problem_without_a_kernel_and_a_run_that_fails_differ(self, tmp_path: Path) -> None:
        with GemmLibrary.open(stub(tmp_path, "one", MISBEHAVE="return -1", HURT=64)) as library:
            a, b, c = gemm_arrays()
            with pytest.raises(KernelError, match=r"one\.so: dispatcher_run_gemm has no kernel for the problem"):
                library.run(GemmProblem(32, 16, 47), "universal", pointers(a, b), c.ctypes.data)
            with pytest.raises(LibraryError, match=r"one\.so: dispatcher_run_gemm returned -1"):
                library.run(GemmProblem(64, 16, 16), "universal", pointers(a, b), c.ctypes.data)

    @pytest.mark.parametrize("ms", ["1.0f/0", "0.0f/0"])
    def test_a_time_is_a_number(self, tmp_path: Path, ms: str) -> None:
        with (
            GemmLibrary.open(stub(tmp_path, "timeless", MS=ms)) as library,
            pytest.raises(LibraryError, match=r"took -?(inf|nan) ms"),
        ):
            run_gemm(library)

    def test_a_malformed_list_of_kernels(self, tmp_path: Path) -> None:
        with (
            GemmLibrary.open(stub(tmp_path, "torn", NAME='"\\""')) as library,
            pytest.raises(LibraryError, match=r"torn\.so: dispatcher_export_registry_json must list kernels"),
        ):
            library.kernel_names()


class TestConv:
    @pytest.mark.parametrize("variant", ["forward", "bwd_data", "bwd_weight"])
    def test_operands_come_in_the_order_of_each_direction(self, tmp_path: Path, variant: str) -> None:
        """For small integers, <conv(x, w), dy> = <x, dx> = <w, dw> exactly, if each operand is in its place."""
        rng = np.random.default_rng(0)
        out = CONV.output_sizes
        x, w, dy = (
            rng.integers(-1, 2, shape).astype(np.float16)
            for shape in ((2, 5, 6, 16), (32, 3, 3, 8), (2, out.Ho, out.Wo, 32))
        )
        operands = {"forward": (x, w), "bwd_data": (dy, w), "bwd_weight": (dy, x)}[variant]
        other = {"forward": dy, "bwd_data": x, "bwd_weight": w}[variant]
        result = np.full_like(other, np.nan)
        direction = ["forward", "bwd_data", "bwd_weight"].index(variant)
        with ConvLibrary.open(stub(tmp_path, "conv", conv_name(variant=variant), CONV=1, DIRECTION=direction)) as lib:
            assert lib.select_kernel(CONV, variant) == conv_name(variant=variant)
            others = {"forward", "bwd_data", "bwd_weight"} - {variant}
            assert not any(lib.is_supported(CONV, v) for v in others)
            assert lib.run(CONV, variant, pointers(*operands), result.ctypes.data) == 1
        product = np.sum(result.astype(np.float64) * other)
        expected = self._product(x, w, dy)
        assert product == expected

    @staticmethod
    def _product(x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> float:
        padded, total = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (0, 0), (0, 0)]), 0.0
        for y, v in np.ndindex(3, 3):
            seen = padded[:, y : y + dy.shape[1], v : v + 2 * dy.shape[2] : 2]
            pairs = np.einsum("nhwgc,nhwgk->gkc", seen.reshape(*seen.shape[:3], 2, 8), dy.reshape(*dy.shape[:3], 2, 16))
            total += float(np.sum(pairs.reshape(32, 8) * w[:, y, v]))
        return total

    def test_codes(self, tmp_path: Path) -> None:
        with ConvLibrary.open(stub(tmp_path, "conv", conv_name(), CONV=1, MISBEHAVE="return -7")) as library:
            with pytest.raises(LibraryError, match=r"conv\.so: conv_dispatcher_run returned -7"):
                library.run(CONV, "forward", [0, 0], 0)
            with pytest.raises(KernelError, match=r"conv\.so: conv_dispatcher_run has no kernel for the problem"):
                library.run(CONV, "bwd_data", [0, 0], 0)
            with pytest.raises(LibraryError, match="returned -3"):
                library.run(CONV, "forward", [0, 0], 0, stream=8)  # arrives

    def test_a_size_beyond_c_is_refused(self, tmp_path: Path) -> None:
        huge = GroupedConvProblem(1, 16, 16, 1, 4, 4, 1, 1, stride_h=2**31)
        with (
            ConvLibrary.open(stub(tmp_path, "conv", CONV=1)) as library,
            pytest.raises(KernelError, match="has a size beyond 32 bits"),
        ):
            library.is_supported(huge, "forward")

    def test_the_struct_is_that_of_c(self, tmp_path: Path) -> None:
        declared = re.search(r"typedef struct \{([^}]*)\} ConvProblemC;", (INCLUDE / "tilewise.h").read_text())
        assert declared is not None
        names = re.findall(r"(\w+)[,;]", re.sub(r"/\*.*?\*/", "", declared[1]))
        offsets = " ".join(f"SHOW(offsetof(ConvProblemC, {name}))" for name in names)
        source = tmp_path / "offsets.c"
        source.write_text(
            '#include "tilewise.h"\n#include <stdio.h>\n#define SHOW(X) printf("%d ", (int)X);\n'
            f"int main(void) {{ {offsets} SHOW(sizeof(ConvProblemC)) }}"
        )
        subprocess.run([str(CC), f"-I{INCLUDE}", str(source), "-o", str(tmp_path / "offsets")], check=True)
        told = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True).stdout.split()
        ours = [getattr(ConvProblemC, field[0]).offset for field in ConvProblemC._fields_]
        assert [*ours, ctypes.sizeof(ConvProblemC)] == [int(x) for x in told]
        assert len(names) == len(ours) == 20


class TestNames:
    @pytest.mark.parametrize("length", [255, 256, 300, 5000])
    def test_a_long_name_arrives_whole(self, tmp_path: Path, length: int) -> None:
        name = "n" * length
        with GemmLibrary.open(stub(tmp_path, "long", name)) as library:
            assert library.select_kernel(GEMM, "universal") == name

    def test_an_endless_name_does_not(self, tmp_path: Path) -> None:
        with (
            GemmLibrary.open(stub(tmp_path, "long", NAME='"' + "n" * 70000 + '"')) as library,
            pytest.raises(LibraryError, match="gives a name of 65536 bytes or more"),
        ):
            library.select_kernel(GEMM, "universal")

    @pytest.mark.parametrize("name", ['""', '"gr\\xc3\\xb6sse"'])
    def test_a_text_that_is_not_a_name(self, tmp_path: Path, name: str) -> None:
        with (
            GemmLibrary.open(stub(tmp_path, "odd", NAME=name)) as library,
            pytest.raises(LibraryError, match="must give an ASCII name"),
        ):
            library.select_kernel(GEMM, "universal")


class TestRefusals:
    """An unsuitable file is refused with its name, if possible before any of its code runs."""

    def test_a_function_is_missing(self, tmp_path: Path, log: Path) -> None:
        path = stub(tmp_path, "half", WITHOUT_RUN=1)
        with pytest.raises(ConfigError, match=r"half\.so has no function dispatcher_run_gemm"):
            GemmLibrary.open(path)
        with pytest.raises(ConfigError, match=r"half\.so has no function conv_dispatcher_init"):
            ConvLibrary.open(path)
        assert log_of(log) == []

    def test_another_machine(self, tmp_path: Path) -> None:
        content = bytearray(stub(tmp_path, "alien").read_bytes())
        content[18:20] = (183).to_bytes(2, "little")
        (tmp_path / "alien.so").write_bytes(content)
        with pytest.raises(ConfigError, match=r"alien\.so is for 64-bit aarch64, this process is 64-bit"):
            GemmLibrary.open(tmp_path / "alien.so")

    @pytest.mark.parametrize(
        ("content", "message"), [(b"#!/bin/sh\n", "is not a shared library"), (b"", "is not a shared")]
    )
    def test_something_else(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "text.so").write_bytes(content)
        with pytest.raises(ConfigError, match=f"text.so {message}"):
            GemmLibrary.open(tmp_path / "text.so")

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.so cannot be read: No such file"):
            GemmLibrary.open(tmp_path / "none.so")
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            GemmLibrary.open(tmp_path)

    def test_a_library_that_needs_another(self, tmp_path: Path) -> None:
        own = tmp_path / "libgone.so"
        source = tmp_path / "gone.c"
        source.write_text("int gone(void) { return 0; }")
        subprocess.run([str(CC), "-shared", "-fPIC", str(source), "-o", str(own)], check=True)
        source.write_text("int gone(void); int dispatcher_init(void) { return gone(); }")
        subprocess.run([str(CC), "-shared", "-fPIC", str(source), str(own), "-o", str(tmp_path / "a.so")], check=True)
        own.unlink()
        with pytest.raises(ConfigError, match=r"a\.so cannot be loaded: .*libgone\.so"):
            GemmLibrary.open(tmp_path / "a.so")

    def test_it_does_not_start(self, tmp_path: Path, log: Path) -> None:
        with pytest.raises(LibraryError, match=r"lame\.so: dispatcher_init returned -1"):
            GemmLibrary.open(stub(tmp_path, "lame", INIT="return -1"))
        assert [what for what, *_ in log_of(log)] == ["init"]

    @pytest.mark.parametrize("count", [0, -1])
    def test_it_holds_no_kernel(self, tmp_path: Path, log: Path, count: int) -> None:
        with pytest.raises(
            LibraryError, match=rf"empty\.so: dispatcher_get_kernel_count must be at least 1, got {count}"
        ):
            GemmLibrary.open(stub(tmp_path, "empty", COUNT=f"({count})"))
        assert [what for what, *_ in log_of(log)] == ["init", "cleanup"]


class TestLife:
    """A library is initialised once per process and cleaned up once, by the process that initialised it."""

    def test_opened_twice_started_once(self, tmp_path: Path, log: Path) -> None:
        path = stub(tmp_path, "one")
        (tmp_path / "link.so").symlink_to(path)
        with GemmLibrary.open(path) as first:
            with GemmLibrary.open(tmp_path / "link.so") as second:
                assert second is first
            run_gemm(first)
        assert [what for what, *_ in log_of(log)] == ["init", "cleanup"]
        with pytest.raises(LibraryError, match="is closed"):
            first.is_supported(GEMM, "universal")
        with GemmLibrary.open(path) as again:
            run_gemm(again)
        assert [what for what, *_ in log_of(log)] == ["init", "cleanup"] * 2

    def test_all_are_closed_at_once(self, tmp_path: Path, log: Path) -> None:
        library = GemmLibrary.open(stub(tmp_path, "one"))
        close_all()
        with pytest.raises(LibraryError, match="is closed"):
            library.is_supported(GEMM, "universal")
        library.close()
        with GemmLibrary.open(tmp_path / "one.so") as again:
            run_gemm(again)
        assert [what for what, *_ in log_of(log)] == ["init", "cleanup"] * 2

    def test_cleaned_up_at_exit(self, tmp_path: Path, log: Path) -> None:
        run_alone(f"""
            from tilewise.kernels.ck.libraries._gemm_library import GemmLibrary
            kept = GemmLibrary.open({str(stub(tmp_path, "one"))!r})
        """)
        assert [what for what, *_ in log_of(log)] == ["init", "cleanup"]

    def test_a_forked_child_opens_its_own(self, tmp_path: Path, log: Path) -> None:
        run_alone(f"""
            import os, sys
            from tilewise.errors import LibraryError
            from tilewise.kernels.ck.libraries._gemm_library import GemmLibrary
            from tilewise.ops import GemmProblem
            inherited = GemmLibrary.open({str(stub(tmp_path, "one"))!r})
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == 0
                inherited.is_supported(GemmProblem(16, 16, 16), "universal")
                sys.exit()
            try:
                inherited.is_supported(GemmProblem(16, 16, 16), "universal")
            except LibraryError as e:
                assert "was opened before this process was forked" in str(e)
            else:
                raise AssertionError
            inherited.close()
            with GemmLibrary.open({str(tmp_path / "one.so")!r}) as own:
                assert own is not inherited and own.is_supported(GemmProblem(16, 16, 16), "universal")
        """)
        calls = [(what, process) for what, _, process in log_of(log)]
        parent, child = calls[0][1], calls[1][1]
        assert parent != child
        assert calls == [("init", parent), ("init", child), ("cleanup", child), ("cleanup", parent)]

    def test_one_thread_at_a_time(self, tmp_path: Path) -> None:
        """The stub returns -9 to the second of two concurrent calls."""
        failed: list[BaseException] = []

        def work(library: GemmLibrary) -> None:
            try:
                for _ in range(30):
                    run_gemm(library, GemmProblem(64, 64, 64))
            except BaseException as e:
                failed.append(e)

        with GemmLibrary.open(stub(tmp_path, "one")) as library:
            threads = [threading.Thread(target=work, args=(library,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failed == []

    def test_a_cleanup_that_fails_is_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        source = tmp_path / "bad.c"
        rest = ["is_supported", "select_kernel", "run"]
        source.write_text(
            "int conv_dispatcher_init(void) { return 0; } int conv_dispatcher_get_kernel_count(void) { return 1; }\n"
            + "\n".join(f"int conv_dispatcher_{name}(void) {{ return 0; }}" for name in rest)
            + "\nint conv_dispatcher_cleanup(void) { return -5; }"
        )
        subprocess.run([str(CC), "-shared", "-fPIC", str(source), "-o", str(tmp_path / "bad.so")], check=True)
        with caplog.at_level(logging.WARNING):
            ConvLibrary.open(tmp_path / "bad.so").close()
        assert "bad.so: conv_dispatcher_cleanup returned -5" in caplog.text


def test_nothing_but_numpy_is_needed() -> None:
    run_alone("""
        import sys
        import tilewise.kernels.ck
        assert not {"torch", "triton", "pandas", "lightgbm", "mlflow", "hydra"} & set(sys.modules)
    """)


def test_our_own_library_says_no_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWISE_GEMM_MODEL", raising=False)
    with pytest.raises(LibraryError, match=r"libtilewise\.so: dispatcher_init returned -1"):
        GemmLibrary.open(build())
