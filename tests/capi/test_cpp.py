"""The C++ class and the examples in C++ are compiled, run, and agree with Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from capi.client import needs_compiler
from small_model import write_model
from tilewise.capi import build, export_model
from tilewise.capi._build import INCLUDE
from tilewise.model import Predictor, load_artefact
from tilewise.ops import GemmProblem, GroupedConvProblem

CXX = shutil.which(os.environ.get("CXX", "c++"))
EXAMPLES = Path(__file__).parents[2] / "examples"
GEMM = "gemm_universal_bf16_sm90"
LAYER = GroupedConvProblem(N=32, C=256, K=256, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
STRICT = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror")

pytestmark = [needs_compiler, pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")]


NEGATIVE = """
#include <cstdio>
#include "tilewise.hpp"

int main(int, char **argv)
{
    tilewise::Registry registry(argv[1]);
    registry.load(argv[2]);
    try {
        registry.rank(tilewise::gemm(1, 1, 1, "bf16"), -1);
    } catch (const tilewise::Error &error) {
        std::printf("%s", error.what());
    }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpp")


def program(folder: Path, source: Path) -> Path:
    """Return a compiled program."""
    made, library = folder / source.stem, build()
    if not made.exists():
        command = [CXX, *STRICT, f"-I{INCLUDE}", source, library, f"-Wl,-rpath,{library.parent.resolve()}", "-o", made]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return made


def exported(folder: Path, target: str) -> Path:
    """Return the model file of a small model of the target; the model's folder stands beside it."""
    path = folder / f"{target}.twm"
    if not path.exists():
        export_model(load_artefact(write_model(folder / target, trees=20, target=target)), path)
    return path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize("name", ["select", "gemm", "conv"])
def test_an_example_explains_its_use(folder: Path, name: str) -> None:
    assert "usage: " in run(program(folder, EXAMPLES / f"{name}.cpp")).stderr


@pytest.mark.long
def test_the_c_example_selects(folder: Path) -> None:
    done = run(program(folder, EXAMPLES / "select.cpp"), exported(folder, GEMM), "512", "512", "64")
    best = [p.kernel_name for p in Predictor.load(folder / GEMM).rank(GemmProblem(512, 512, 64), top_k=3)]
    assert done.stdout.splitlines()[1:] == [f"{i}. {name}" for i, name in enumerate(best, 1)]


@pytest.mark.long
def test_matrix_products_are_ranked_as_in_python_and_computed(folder: Path) -> None:
    done = run(program(folder, EXAMPLES / "gemm.cpp"), "sm90", "bf16", exported(folder, GEMM))
    assert done.returncode == 0, done.stderr
    expected = []
    for m in (1, 128, 4096):
        ranked = Predictor.load(folder / GEMM).rank(GemmProblem(m, 1536, 4096), top_k=3)
        expected.append(f"M={m}: {ranked[0].kernel_name}")
        expected += [f"  {p.kernel_name} {p.tflops:.1f} TFLOPS {p.latency_ms:.4f} ms" for p in ranked]
    assert done.stdout.splitlines() == [*expected, "reference: 0x4280"]


@pytest.mark.long
def test_a_convolution_and_its_gradients_are_selected_as_in_python(folder: Path) -> None:
    targets = {v: f"grouped_conv_{v}_bf16_sm90" for v in ("forward", "bwd_data", "bwd_weight")}
    files = [exported(folder, target) for target in targets.values()]
    done = run(program(folder, EXAMPLES / "conv.cpp"), "sm90", "bf16", *files)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{v}: {Predictor.load(folder / target).rank(LAYER)[0].kernel_name}" for v, target in targets.items()
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arch", "dtype", "message"),
    [
        ("gfx950", "bf16", f"is a model of {GEMM}, not of gfx950"),
        ("sm90", "fp8", "no model of gemm_universal_fp8_sm90 is loaded"),
    ],
)
def test_mistakes_are_exceptions_with_a_message(folder: Path, arch: str, dtype: str, message: str) -> None:
    done = run(program(folder, EXAMPLES / "gemm.cpp"), arch, dtype, exported(folder, GEMM))
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.long
def test_a_negative_number_of_kernels_is_refused(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "negative.cpp"
    source.write_text(NEGATIVE)
    done = run(program(folder, source), "sm90", exported(folder, GEMM))
    assert done.stdout == "at most -1 kernels is no number of kernels"
