"""A package of compiled programs carries what Triton needs, and anything else in it is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewise
from tilewise.collect import Origin, Package, read_package, write_package
from tilewise.errors import DataError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).parents[1])}
KEY, OTHER = "ab" * 32, "cd" * 32
ORIGIN = Origin("sm90", "3.7.1", "c" * 64, "d" * 64)


def files(key: str, name: str = "gemm") -> dict[str, bytes]:
    return {f"{name}.cubin": b"\x7fELF" + key.encode(), f"{name}.json": json.dumps({"hash": key}).encode()}


PACKAGE = Package("gemm_universal_bf16_sm90", ORIGIN, {KEY: files(KEY), OTHER: files(OTHER)})


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write the package of another content under the same name."""
    write_package(path, PACKAGE)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    change(content)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, bytes]], None]:
    def apply(content: dict[str, bytes]) -> None:
        document = json.loads(content["manifest.json"])
        change(document)
        content["manifest.json"] = json.dumps(document).encode()

    return apply


def renamed(name: str) -> Callable[[dict[str, bytes]], None]:
    """Let the first program's binary have another name, in the manifest too."""

    def apply(content: dict[str, bytes]) -> None:
        data = content.pop(f"{KEY}/gemm.cubin")
        content[f"{KEY}/{name}"] = data
        manifest(lambda d: d["programs"][KEY].update({name: d["programs"][KEY].pop("gemm.cubin")}))(content)

    return apply


def test_a_package_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_package(tmp_path / "new" / name, PACKAGE)
    assert read_package(tmp_path / "new" / "a.zip") == PACKAGE
    assert (tmp_path / "new" / "a.zip").read_bytes() == (tmp_path / "new" / "b.zip").read_bytes()
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["a.zip", "b.zip"]


@pytest.mark.parametrize(("change", "match"), [
    (lambda c: c.update({f"{KEY}/gemm.cubin": b"\x7fELF" + b"x" * 64}), "gemm.cubin is damaged"),
    (lambda c: c.update({f"{KEY}/gemm.cubin": b"x" * 999}), "has more than 68 bytes"),
    (lambda c: c.pop(f"{KEY}/gemm.cubin"), "listed in the manifest or contained, but not both"),
    (lambda c: c.update({"../evil": b"x"}), "listed in the manifest or contained, but not both"),
    (lambda c: c.pop("manifest.json"), "not a package of programs: KeyError"),
    (lambda c: c.update({"manifest.json": b"{"}), "not a package of programs: JSONDecodeError"),
    (lambda c: c.update({"manifest.json": b"[]"}), "not a package of programs: TypeError"),
    (manifest(lambda d: d.update(format=2)), "format must be 1, got 2"),
    (manifest(lambda d: d["origin"].update(arch="gfx942")), "arch must be one of NVIDIA's"),
    (manifest(lambda d: d["origin"].update(host="x")), "not a package of programs: TypeError"),
    (manifest(lambda d: d["programs"].update({"../" + KEY[3:]: d["programs"].pop(KEY)})), "must be a key of Triton's"),
    (manifest(lambda d: d["programs"][KEY].pop("gemm.json")), "with a binary and a description"),
    (manifest(lambda d: d["programs"][KEY]["gemm.json"].update(size=-1)), "must have between 1 and"),
    (manifest(lambda d: d["programs"][KEY]["gemm.json"].update(size=9 << 30)), "at most 8589934592 bytes in all"),
    (renamed("../gemm.cubin"), "must be a key of Triton's"),
    (renamed("gemm.so"), "with a binary and a description"),
    (renamed("other.cubin"), "must have files of one program"),
])  # fmt: skip
def test_anything_else_is_refused(change: Callable[[dict[str, bytes]], None], match: str, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "p.zip", change)
    with pytest.raises(DataError, match=match) as error:
        read_package(path)
    assert str(error.value).startswith(str(path))


def test_a_description_of_another_program_is_refused(tmp_path: Path) -> None:
    write_package(tmp_path / "p.zip", dataclasses.replace(PACKAGE, programs={KEY: files(OTHER)}))
    with pytest.raises(DataError, match="describes another program"):
        read_package(tmp_path / "p.zip")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.zip").write_bytes(hashlib.sha256(b"").digest())
    with pytest.raises(DataError, match="not a package of programs: BadZipFile"):
        read_package(tmp_path / "p.zip")


COMPILE = """
import sys
from tilewise.cli.main import main
from tilewise.cli.runtime import compile as verb
from tilewise.kernels import Pool
from tilewise.kernels.triton import Kernel
from tilewise.kernels.vendor import VendorCall

kernels = (Kernel.from_config("16x16x16_plain_w1_s2_g2_k1"), Kernel.from_config("16x16x16_plain_w1_s2_g2_k2"))
verb.load_pool = lambda target: Pool(target.op, target.variant, target.dtype, (*kernels, VendorCall("cublas")))
sys.exit(main(sys.argv[1:]))
"""
USE = """
import triton
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import GemmProblem

hits = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
for config in ("16x16x16_plain_w1_s2_g2_k1", "16x16x16_plain_w1_s2_g2_k2"):
    programs = family_of("gemm", "universal").programs(Kernel.from_config(config), GemmProblem(64, 64, 64), "bf16")
    for program in programs:
        assert compile_program(program, cuda_target("sm90")).asm["cubin"]
print(hits)
"""


@pytest.mark.long
class TestCompiledForReal:
    """Triton compiles for an arch without its GPU, so all of this is the real path, in processes of their own."""

    @pytest.fixture(scope="class")
    @staticmethod
    def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("compiled")
        (folder / "set.csv").write_text("origin,M,N,K\na,64,64,64\nb,128,64,64\n")
        done = run(COMPILE, folder / "cache", folder, "compile", "target=gemm_universal_bf16_sm90",
                   "collect.problems=set.csv", "collect.jobs=2", "output=programs.zip")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "programs compiled, packed into programs.zip; 0 kernels failed" in done.stdout
        return folder / "programs.zip"

    def test_another_machine_finds_the_programs(self, package: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        before = run(USE, tmp_path / "empty", tmp_path)
        assert "True" not in before.stdout, before.stderr
        for is_new in (True, False):
            done = run(COMPILE, cache, tmp_path, "compile", f"input={package}", "--json")
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout)
            assert told["target"] == "gemm_universal_bf16_sm90"
            assert told["added"] == (told["programs"] if is_new else 0)
        package.rename(package.with_suffix(".moved"))  # nothing refers to where the programs came from
        try:
            after = run(USE, cache, tmp_path)
        finally:
            package.with_suffix(".moved").rename(package)
        assert "False" not in after.stdout
        assert after.stdout.count("True") == before.stdout.count("False") > 0

    @pytest.mark.parametrize("name", ["triton", "compiler", "sources"])
    def test_programs_of_other_versions_are_refused(self, package: Path, name: str, tmp_path: Path) -> None:
        found = read_package(package)
        other = dataclasses.replace(found, origin=dataclasses.replace(found.origin, **{name: "other"}))
        write_package(tmp_path / "p.zip", other)
        done = run(COMPILE, tmp_path / "cache", tmp_path, "compile", "input=p.zip")
        assert done.returncode == 2
        assert f"{name} must be " in done.stderr
        assert not (tmp_path / "cache").exists()


def run(code: str, cache: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that compiles with Triton, into a cache of its own."""
    environment = {**ENVIRONMENT, "TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_the_interpreter_compiles_nothing(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tilewise.cli.main", "compile", "target=gemm_universal_bf16_sm90"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "unset it" in done.stderr
