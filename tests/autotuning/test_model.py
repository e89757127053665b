"""From calls to a model and back: collect, train, and an unseen key is answered without measuring."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewise.autotuning.op import find_kernel, record_table
from tilewise.autotuning.records import TUNED_FOLDER, read_records
from tilewise.data import read_measurements
from tilewise.errors import ConfigError, DataError
from tilewise.ops import OPS

SOURCE = """
import math
import tilewise

WIDTHS = (1, 4, 16, 64)
seen = []

def bench(call, quantiles):
    call()
    n, width = seen[-1]
    return [(math.ceil(n / width) + width / 4) * 1e-3] * 3  # ms; the best width grows with n

@tilewise.autotune(
    configs=[{"WIDTH": w} for w in WIDTHS], key=["n"], name="NAME", flops="n", bytes="8*n", do_bench=bench, top=2
)
def kernel(n, *, WIDTH):
    seen.append((n, WIDTH))
    return WIDTH

@kernel.inputs
def inputs(n):
    return (n,), {}

@kernel.sampler
def draw(random):
    return {"n": int(2 ** random.uniform(1, 11))}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return a project's folder with a kernel of its own, whose op no other test has."""
    name = f"own_{abs(hash(request.node.name)) % 10**8}"
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / f"{name}.py").write_text(SOURCE.replace("NAME", name))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path[:3]))
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def _ops_of_this_test() -> object:
    known = set(OPS)
    yield
    for name in OPS.keys() - known:
        del OPS[name]


def _name(project: Path) -> str:
    return next(project.glob("*.py")).stem


def _tilewise(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "tilewise", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_records_of_calls_are_rows_of_a_measurement_table(project: Path, tmp_path: Path) -> None:
    from tilewise.collect import write_measurement_table

    kernel = find_kernel(f"{_name(project)}:kernel")
    for n in (3, 50, 700):
        kernel(n)
    records = read_records(tmp_path / "tilewise-cache" / TUNED_FOLDER, kernel.name)
    (project / "conf" / "arch").mkdir(parents=True)
    (project / "conf" / "op").mkdir()
    shipped = Path(__file__).parents[2] / "conf" / "arch" / "sm90.yaml"
    (project / "conf" / "arch" / "cpu.yaml").write_text(shipped.read_text().replace("sm90", "cpu"))
    target = kernel.op.target((), "cpu")
    write_measurement_table(record_table(kernel.op, records, target, "calls"), project / "calls.parquet")
    rows = read_measurements(project / "calls.parquet", target)
    assert sorted(rows["n"].unique()) == [3, 50, 700]
    assert len(rows) == 12
    fastest = rows.loc[rows.groupby("n")["latency_ms"].idxmin()].set_index("n")["WIDTH"]
    assert fastest.to_dict() == {3: 4, 50: 16, 700: 64}


def test_records_of_other_code_are_no_rows(project: Path) -> None:
    kernel = find_kernel(f"{_name(project)}:kernel")
    with pytest.raises(DataError, match=r"no record of .* belongs to the kernel's present code"):
        record_table(kernel.op, [], kernel.op.target((), "sm90"), "calls")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("no_such_module:kernel", "cannot be imported"),
        ("json:no_such_name", "cannot be imported"),
        ("json:dumps", "must be a kernel under @tilewise.autotune, got function"),
        ("no_such_entry", "must be MODULE:ATTRIBUTE, or an entry point"),
    ],
)
def test_a_place_without_a_tuned_kernel_is_refused(place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_kernel(place)


@pytest.mark.long
def test_from_three_commands_to_answers_without_measuring(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = _name(project)
    said = _tilewise("collect", f"collect.kernel={name}:kernel", "dtype=fp32", "arch=sm90", "collect.draw=80")
    assert f"definition: conf/op/{name}.yaml" in said
    quick = ["n_splits=2", "tune.n_trials=1", "model.n_estimators=60"]
    _tilewise("train", f"op={name}", "dtype=fp32", "arch=sm90", *quick)
    monkeypatch.setattr("tilewise.autotuning._machines._processor", lambda: "")
    monkeypatch.setattr("tilewise.autotuning._machines.CPU", "sm90")  # the table's arch
    monkeypatch.setenv("TILEWISE_MODELS", "models")

    kernel = find_kernel(f"{name}:kernel")
    best = [kernel(n) for n in (5, 77, 1500)]
    assert best[-1] == 64
    assert kernel.choose(1499).why == "model"
    module = sys.modules[name]
    assert len(module.seen) == 3  # nothing was measured

    (project / f"{name}_later.py").write_text(SOURCE.replace("NAME", name).replace("return WIDTH", "return WIDTH + 0"))
    later = find_kernel(f"{name}_later:kernel")
    with caplog.at_level(logging.WARNING):
        assert later.choose(1500).why == "measured"
        assert later.choose(1400).why == "measured"
    assert caplog.text.count("was learnt from another version of this kernel's code") == 1
    assert len(sys.modules[f"{name}_later"].seen) == 4  # the best two of each key
