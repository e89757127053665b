"""The C library selects the same kernels as Python; every mistake gives a code and a message, never a crash."""

from __future__ import annotations

import ctypes as c
import gzip
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capi import client
from capi.client import Client, c_conv, c_gemm, c_problem, library, needs_compiler
from kernels.ck.stubs import gemm_name, model_of, stub
from model.test_artefact import PROBLEMS, make_parts
from model.test_ranker import CK, TRITON, compiled
from mutate import Damage, damaged
from small_model import altered, write_model
from strategies import conv_problems, damages, gemm_problems
from tilewise.capi import build, export_model, model_bytes
from tilewise.capi.__main__ import main
from tilewise.capi._build import INCLUDE, LIBRARIES, SOURCES
from tilewise.capi._export_file import seal
from tilewise.dispatch import Dispatcher
from tilewise.errors import ProblemError
from tilewise.model import LABELS, Predictor, TrainedModel, load_artefact, write_artefact
from tilewise.ops import CONV_LAYOUTS, GemmProblem, GroupedConvProblem, Problem, Target

pytestmark = needs_compiler
GEMM, CONV = "gemm_universal_bf16_sm90", "grouped_conv_forward_bf16_sm90"
EDGES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 7, 64, 2**31, 2**40, 2**62, 2**63 - 1])


@cache
def exported(name: str, trees: int, folder: Path) -> tuple[TrainedModel, Path]:
    """Return a small model and its file."""
    model = write_model(folder / f"{name}.{trees}", trees=trees, target=name)
    path = folder / f"{name}.{trees}.twm"
    assert main(["export", str(model), str(path)]) == 0
    return load_artefact(model), path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("capi")


@pytest.mark.long
@pytest.mark.parametrize("target", [GEMM, CONV])
def test_the_same_ranking_as_python(folder: Path, target: str) -> None:
    model, path = exported(target, 60, folder)
    with Client(path) as asked:
        assert asked.code == 0, asked.error

        @settings(max_examples=100)
        @given(problem=gemm_problems() if target == GEMM else conv_problems())
        def same(problem: Problem) -> None:
            expected = [model.pool.names[i] for i in model.rank(problem)]
            seen, scores = asked.rank(c_problem(problem), len(model.pool))
            assert [model.pool.names[i] for i in seen] == expected
            assert scores == sorted(scores, reverse=True)
            assert asked.select(c_problem(problem)) == (expected[0] if expected else client.NO_KERNEL)
            assert asked.is_supported(c_problem(problem)) == bool(expected)

        same()


@pytest.mark.long
@pytest.mark.parametrize(("target", "shortlist"), [*((t, 0) for t in (*TRITON, *CK)), (TRITON[0], 5), (CK[0], 9)])
def test_the_same_ranking_with_an_estimate_on_every_target(folder: Path, target: str, shortlist: int) -> None:
    ranker, pool, arch, table, trees, estimate = compiled(target, shortlist)
    model = altered(
        exported(GEMM, 4, folder)[0],
        target=Target.parse(target), pool=pool, arch=arch, features=table, scores=trees, cost_model=estimate,
        shortlist=shortlist,
    )  # fmt: skip
    path = folder / f"{target}.estimate.twm"
    export_model(model, path)
    with Client(path) as asked:
        assert asked.code == 0, asked.error

        @settings(max_examples=15, derandomize=True)
        @given(problem=gemm_problems() if pool.op == "gemm" else conv_problems(max_size=512, layouts=CONV_LAYOUTS))
        def same(problem: Problem) -> None:
            best = ranker.best(problem, len(pool))
            seen, scores = asked.rank(c_problem(problem), len(pool))
            assert seen == list(best.kernels)
            np.testing.assert_allclose(scores, best.scores, rtol=1e-12, atol=1e-12)

        same()


@pytest.mark.long
@pytest.mark.parametrize("extras", [(), ("latency",), ("bandwidth",), ("latency", "bandwidth")])
@pytest.mark.parametrize("label", LABELS)
def test_the_same_figures_as_python(tmp_path: Path, label: str, extras: tuple[str, ...]) -> None:
    """Latency and bandwidth come from trees of their own where the model has some, as in Python."""
    boosters = dict.fromkeys(extras, make_parts(label).extra_boosters["latency"])
    write_artefact(tmp_path / "model", make_parts(label, extra_boosters=boosters))
    predictor = Predictor.load(tmp_path / "model")
    export_model(predictor.model, tmp_path / "model.twm")
    with Client(tmp_path / "model.twm") as asked:
        assert asked.code == 0, asked.error
        for problem in PROBLEMS:
            expected = predictor.rank(problem, top_k=5)
            found = asked.predict(c_problem(problem), 5)
            assert not isinstance(found, int), asked.error
            assert [predictor.model.pool.names[row[0]] for row in found] == [p.kernel_name for p in expected]
            figures = [tuple(p.figures().values()) for p in expected]
            np.testing.assert_allclose([row[1:] for row in found], figures, rtol=1e-9)
        assert asked.predict(c_gemm(8, 8, 8), 5) == client.BAD_PROBLEM


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.tuples(EDGES, EDGES, EDGES), layout=st.sampled_from(["rcr", "ccr", "rcc", "", "rcrr"]))
def test_impossible_products_are_those_of_python(folder: Path, sizes: tuple[int, int, int], layout: str) -> None:
    with Client(exported(GEMM, 4, folder)[1]) as asked:
        try:
            GemmProblem(*sizes, layout)
            assert asked.is_supported(c_gemm(*sizes, layout)) in (0, 1, client.UNSUPPORTED)
        except ProblemError:
            assert asked.is_supported(c_gemm(*sizes, layout)) == client.BAD_PROBLEM


@pytest.mark.long
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    problem=conv_problems(layouts=CONV_LAYOUTS),
    changed=st.dictionaries(st.sampled_from(GroupedConvProblem.column_names()[:-1]), EDGES),
    layout=st.sampled_from(["NHWGC", "NGCHW", "NCHW", "NHWGCNHW"]),
)
def test_impossible_convolutions_are_those_of_python(
    folder: Path, problem: GroupedConvProblem, changed: dict[str, int], layout: str
) -> None:
    columns = problem.to_dict() | changed | {"layout": layout}
    asking = c_conv(**{name.lower(): value for name, value in columns.items()})
    with Client(exported(CONV, 4, folder)[1]) as asked:
        try:
            GroupedConvProblem(**columns)
            assert asked.is_supported(asking) in (0, 1, client.UNSUPPORTED)
        except ProblemError:
            assert asked.is_supported(asking) == client.BAD_PROBLEM, asked.error


def test_a_file_of_a_version_without_layouts_still_ranks(folder: Path) -> None:
    """The file was exported by the last revision whose convolutions had no layout; it means channels last."""
    old = folder / "old.twm"
    old.write_bytes(gzip.decompress((Path(__file__).parent / "conv_without_layout.twm.gz").read_bytes()))
    columns = {"n": 8, "c": 64, "k": 64, "g": 1, "hi": 14, "wi": 14, "y": 3, "x": 3, "di": 1, "z": 1}
    columns |= {f"{name}_{axis}": 1 for name in ("stride", "dilation") for axis in "dhw"}
    with Client(old) as asked, Client(exported(CONV, 4, folder)[1]) as new:
        assert asked.code == 0, asked.error
        for layout in ("NHWGC", ""):
            last = c_conv(layout=layout, **columns)
            assert len(asked.rank(last, 5)[0]) == 5
            assert asked.rank(last, 5) == asked.rank(c_conv(layout="NHWGC", **columns), 5)
        assert asked.predict(c_conv(layout="NHWGC", **columns), 5) == client.UNSUPPORTED
        assert "earlier version" in asked.error
        first = c_conv(layout="NGCHW", **columns)
        for client_of_file in (asked, new):
            assert client_of_file.is_supported(first) == 0
            assert client_of_file.select(first) == client.NO_KERNEL
            assert client_of_file.rank(first, 5) == ([], [])


def test_the_reference_computes_channels_last_only() -> None:
    columns = {name: 1 for name in ["n", "c", "k", "g", "hi", "wi", "y", "x", "di", "z"]}
    columns |= {f"{name}_{axis}": 1 for name in ("stride", "dilation") for axis in "dhw"}
    first, one = c_conv(layout="NGCHW", **columns), np.ones(1, dtype=np.float32)
    arrays = (c.c_void_p(one.ctypes.data) for _ in range(3))
    assert library().tilewise_reference(b"fp32", b"forward", c.byref(first), *arrays) == client.UNSUPPORTED
    assert b"channels last" in library().tilewise_last_error()


@pytest.mark.long
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=damages())
def test_a_damaged_file_is_refused(folder: Path, changes: list[Damage]) -> None:
    whole = exported(CONV, 4, folder)[1].read_bytes()
    path, content = folder / "damaged.twm", damaged(whole, changes)
    path.write_bytes(content)
    with Client(path) as asked:
        assert asked.code == (0 if content == whole else client.BAD_FILE)
        assert content == whole or str(path) in asked.error


def _helped(*arguments: str | Path) -> dict[str, Any]:
    told = subprocess.run([client.helper(), *arguments], capture_output=True, check=True)
    document: dict[str, Any] = json.loads(told.stdout)
    return document


def test_gpu_helper_validates_with_the_reference_on_the_host(folder: Path) -> None:
    """The reference is named as such, and its time is not given as the kernel's."""
    model, path = exported(GEMM, 60, folder)
    expected = {
        "problem": {"M": 33, "N": 20, "K": 50},
        "kernel": model.pool.names[model.rank(GemmProblem(33, 20, 50))[0]],
        "execution": {"time_ms": None, "tflops": None, "computed_by": "host reference"},
        "validation": {"accuracy": 100.0},
        "status": "success",
    }
    assert _helped("33", "20", "50", "--validate", "--model", path) == expected
    for wrong in (["1", "2"], ["1", "2", "x", "--model", path], ["1", "2", "3", "--model", "/nowhere"]):
        refused = subprocess.run([client.helper(), *wrong], capture_output=True, check=False)
        assert refused.returncode == 1
        assert json.loads(refused.stdout)["status"] == "error"


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "of_library"), [("fp16", "fp16"), ("bf16", "bf16"), ("fp8", "fp8_fnuz")])
def test_gpu_helper_runs_the_kernels_library(
    dtype: str, of_library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys, their order and their units are exactly those of CK Tile; the time is the library's own."""
    name, other = gemm_name(16, dtype=dtype), gemm_name(32, dtype=dtype)
    model_of(tmp_path, name)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    stub(libraries, "a", other, DTYPE=of_library)
    stub(libraries, "b", name.replace("gemm_universal", "gemm"), DTYPE=of_library, MS=0.25)
    (libraries / "c.so").write_text("no library")
    call = ("32", "16", "64", "--validate", "--model", tmp_path / "model.twm")
    host = _helped(*call)
    assert host["execution"]["computed_by"] == "host reference"
    assert host["validation"] == {"accuracy": 100.0}
    monkeypatch.setenv("TILEWISE_CK_GEMM_LIB", f"/nowhere:{libraries}")
    expected = {
        "problem": {"M": 32, "N": 16, "K": 64},
        "kernel": name,
        "execution": {"time_ms": 0.25, "tflops": pytest.approx(2e-9 * 32 * 16 * 64 / 0.25, abs=1e-6)},
        "validation": {"accuracy": 100.0},
        "status": "success",
    }
    found = _helped(*call)
    assert found == expected
    assert [[*found], [*found["execution"]]] == [[*expected], ["time_ms", "tflops"]], "no other key, and in this order"


def test_a_librarys_wrong_result_lowers_the_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_of(tmp_path, gemm_name())
    monkeypatch.setenv("TILEWISE_CK_GEMM_LIB", str(stub(tmp_path, "a", gemm_name(), CHEAT=1)))
    found = _helped("16", "16", "16", "--validate", "--model", tmp_path / "model.twm")
    assert found["validation"]["accuracy"] == pytest.approx(100 * 255 / 256)


def test_the_registry_as_json(folder: Path) -> None:
    model, path = exported(GEMM, 4, folder)
    with Client(path) as asked:
        text = library().tilewise_export_json(asked.model).decode()
        with Dispatcher.from_folder(model.where) as dispatcher:
            assert text == dispatcher.export_registry_json()  # one form, in Python and C
        document = json.loads(text)
        assert library().tilewise_target(asked.model) == GEMM.encode()
    assert [k["name"] for k in document["kernels"]] == list(model.pool.names)
    assert document["metadata"]["total_kernels"] == len(model.pool)
    kernel, algorithm = model.pool.kernels[3], document["kernels"][3]["algorithm"]
    assert algorithm["tile_shape"] == {"m": kernel.tile_m, "n": kernel.tile_n, "k": kernel.tile_k}
    assert algorithm["block_size"] == 32 * kernel.num_warps


def sanitized(folder: Path, sanitizers: str, source: Path) -> Path:
    """Return a program with an instrumented library that stops at the first error; skip without sanitizers."""
    library, program = folder / f"libtilewise-{sanitizers}.so", folder / f"{source.stem}-{sanitizers}"
    flags = f"-std=gnu11 -O1 -g -fPIC -ffp-contract=off -fsanitize={sanitizers} -fno-sanitize-recover=all".split()
    flags += ["-Dtarget_clones(...)=unused"] * (sanitizers == "thread")  # gcc's crashes where the loader chooses clones
    for made, parts in ((library, ["-shared", *SOURCES]), (program, [source, library, f"-Wl,-rpath,{folder}"])):
        if not made.exists():
            command = [client.CC, *flags, f"-I{INCLUDE}", *parts, "-o", made, *LIBRARIES]
            done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
            assert done.returncode == 0 or made is library, done.stderr
            if done.returncode:
                pytest.skip(f"the compiler has no {sanitizers} sanitizers: {done.stderr[-200:]}")
    return program


def run_sanitized(*command: str | Path) -> str:
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


DRIVER = Path(__file__).with_name("driver.c")


@pytest.mark.long
def test_a_client_under_sanitizers(folder: Path) -> None:
    """Files whose checksum was made right again reach every check behind it."""
    program = sanitized(folder, "address,undefined", DRIVER)
    gemm, conv = exported(GEMM, 4, folder)[1], exported(CONV, 4, folder)[1]
    files, rng = [], np.random.default_rng(0)
    for i in range(150):
        sections = bytearray(model_bytes(exported((GEMM, CONV)[i % 2], 4, folder)[0])[24:])
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(sections) // 4)) * 4
            value = int(rng.choice([-1, 0, 1, 2**31 - 1, -(2**31), *rng.integers(0, 3000, 5)]))
            sections[at : at + 4] = value.to_bytes(4, "little", signed=True)
        files.append(folder / f"{i}.twm")
        files[-1].write_bytes(seal(bytes(sections)))
    told = run_sanitized(program, gemm, conv, *files)
    assert 10 < int(told.split()[-1]) < 150  # some are refused, some cannot be told from a model


@pytest.mark.long
def test_threads_under_a_sanitizer(folder: Path) -> None:
    program = sanitized(folder, "thread", DRIVER)
    run_sanitized(program, exported(GEMM, 4, folder)[1], exported(CONV, 4, folder)[1])


@pytest.mark.long
def test_gpu_helper_under_sanitizers(folder: Path) -> None:
    program = sanitized(
        folder, "address,undefined", Path(client.__file__).parents[2] / "src/tilewise/capi/gpu_helper.c"
    )
    path = exported(GEMM, 4, folder)[1]
    run_sanitized(program, "17", "33", "65", "--validate", "--model", path)
    for wrong in (["1", "2"], ["1", "2", "x"], ["0", "1", "1", "--model", path], ["1", "1", "1", "1"], ["--model"]):
        done = subprocess.run([program, *wrong], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, ""), wrong
        assert json.loads(done.stdout)["status"] == "error"


def test_a_second_build_is_the_first() -> None:
    first, made = build(), build().stat().st_mtime_ns
    assert build() == first
    assert first.stat().st_mtime_ns == made
    assert c.CDLL(str(first)).dispatcher_get_kernel_count() == 0
