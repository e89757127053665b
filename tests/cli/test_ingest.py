"""The verbs ingest and data merge, and the chain from a published CSV to a selection from production."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import ck_files
from store import fresh_store
from synthetic import measurements
from tilewise.cli.main import main
from tilewise.data import read_measurements
from tilewise.ops import Target

CONV, GEMM = "grouped_conv_forward_bf16_gfx950", "gemm_universal_fp8_gfx950"
REAL = Path(__file__).parents[3] / "shared" / "data" / "gfx950_forward_bf16_train.csv"

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a function that runs a command in an empty folder and gives exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, *capsys.readouterr()

    return call


def write_log(broken: bool = False) -> None:
    text = "".join(ck_files.log_pieces(ck_files.gemm_problems(2)))
    Path("run.log").write_text(text.replace('"perf_result"', '"perf', 1) if broken else text)


def test_a_log_becomes_a_table(shell: Shell) -> None:
    write_log()
    code, out, err = shell("ingest", "input=run.log", "output=out.parquet", f"target={GEMM}")
    assert code == 0
    assert out == f"out.parquet: 18 rows of {GEMM} from a log, 18 of them valid\n"
    assert err.startswith("importing: ")
    assert len(read_measurements(Path("out.parquet"), Target.parse(GEMM))) == 18


@pytest.mark.long
def test_op_variant_dtype_and_arch_name_the_target_as_well(shell: Shell) -> None:
    write_log()
    assert shell("ingest", "input=run.log", "output=out.parquet", "op=gemm", "dtype=fp8", "arch=gfx950")[0] == 0
    assert read_measurements(Path("out.parquet"))["arch"].unique().tolist() == ["gfx950"]


def test_a_lost_part_is_shown_with_its_line(shell: Shell) -> None:
    write_log(broken=True)
    code, out, _ = shell("ingest", "input=run.log", "output=out.parquet", f"target={GEMM}")
    assert code == 0
    assert "17 rows" in out
    assert "1 of 18 parts did not come through (out.quarantined.jsonl):\n  1 x not a JSON object: " in out
    assert "    line 4: not a JSON object: " in out
    (line,) = Path("out.quarantined.jsonl").read_text().splitlines()
    assert json.loads(line)["text"].startswith("{")


def test_a_find_database_needs_no_target(shell: Shell) -> None:
    name = "gfx90a68.HIP.fdb.txt"
    Path(name).write_bytes((Path(__file__).parents[1] / "data" / "miopen" / name).read_bytes())
    code, out, _ = shell("ingest", f"input={name}", "output=out.parquet")
    assert code == 0
    assert out.startswith(
        "out.parquet: 21 times of MIOpen's solvers on gfx90a from a find database, 20 of them valid\n"
    )
    assert "    line 5: dtype must be one of FP32, FP16, BF16, got 'INT8'" in out


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["output=out.parquet"], "ingest needs input=FILE and output=FILE.parquet"),
        (["input=run.log"], "ingest needs input=FILE and output=FILE.parquet"),
        (["input=nothing", "output=out.parquet"], "input=nothing: no such file or folder"),
        (["input=.", "output=out.parquet"], ".: the file cannot be read: Is a directory"),
        (["input=run.log", "output=out.parquet"], "a streaming log is for gemm, not for grouped_conv"),
        (["input=run.log", "output=run.log", f"target={GEMM}"], "run.log exists already"),
        (["input=run.log", "output=out.parquet", f"target={GEMM}", "dtype=bf16"], "states dtype=fp8"),
    ],
)
def test_a_mistake_of_the_caller_is_one_clear_line(words: list[str], message: str, shell: Shell) -> None:
    write_log()
    if "dtype=bf16" in words:
        words = [*words[:2], "target=gemm_universal_bf16_gfx950"]
    code, _, err = shell("ingest", *words)
    assert code == 2
    assert err.splitlines()[-1].startswith("tilewise: error: ")
    assert message in err.splitlines()[-1]
    assert not Path("out.parquet").exists()


@pytest.mark.long
def test_a_merge_is_blocked_until_somebody_decides(shell: Shell) -> None:
    target = "grouped_conv_forward_bf16_sm90"
    frame = measurements(n_problems=10, n_kernels=6, failures=0)
    row = frame.index[frame["is_valid"]][0]
    frame.loc[row, "latency_min_ms"] /= 10
    frame.to_parquet("a.parquet")
    measurements(n_problems=3, n_kernels=6, seed=9).assign(run_id="other").to_parquet("b.parquet")
    merge = ("data", "merge", "input=[a.parquet,b.parquet]", "output=out.parquet", f"target={target}")
    code, out, err = shell(*merge)
    assert (code, Path("out.parquet").exists()) == (2, False)
    assert "1 x cold_samples, e.g. cold start: the median sample took" in out
    assert "1 rows cannot be trusted, so nothing is merged; out.faults.yaml lists them as exclusions" in err
    (entry,) = yaml.safe_load(Path("out.faults.yaml").read_text())
    Path("a.exclusions.yaml").write_text(yaml.safe_dump([{**entry, "reason": "a glitch", "decided_by": "Ada"}]))
    code, out, err = shell(*merge)
    assert (code, err) == (0, "")
    assert "1 rows left out on purpose: cold_samples, a glitch (Ada)" in out
    assert "out.parquet: 77 rows" in out
    assert "of other, synthetic-1" in out
    assert not Path("out.faults.yaml").exists()
    assert len(read_measurements(Path("out.parquet"), Target.parse(target))) == 77
    code, out, _ = shell("data", "prepare", "input=a.parquet", "output=p.parquet", f"target={target}")
    assert (code, "left out on purpose" in out) == (0, True)
    assert shell(*merge)[0] == 2, "an output is never overwritten"


@pytest.mark.long
@pytest.mark.skipif(not REAL.exists(), reason="the published gfx950 table is not beside the repository")
def test_from_the_published_csv_to_a_selection_from_production(shell: Shell, tmp_path: Path) -> None:
    target, uri = f"target={CONV}", f"tracking.uri={fresh_store(tmp_path / 'store')}"
    assert shell("ingest", f"input={REAL}", "output=ck.parquet", target)[0] == 0
    code, out, _ = shell("data", "prepare", "input=ck.parquet", "output=prepared.parquet", target)
    assert (code, "3 x outlier" in out, "22 x contradicts" in out) == (0, True, True)
    data = "data=ck.parquet"  # the imported table serves unprepared, too
    small = ("n_splits=2", "tune.n_trials=0", "model.n_estimators=20", "model.num_leaves=31")
    assert shell("train", data, target, uri, *small)[0] == 0
    assert shell("evaluate", data, target)[0] == 0
    metrics = json.loads(Path(f"reports/{CONV}/metrics.json").read_text())
    assert metrics["pool_size"] == 20
    assert metrics["holdout"]["n_problems"] == 29
    assert metrics["holdout"]["mean_efficiency"] > 0.9
    code, out, _ = shell("promote", data, target, uri)
    assert (code, "promoted, judged on 29 holdout problems" in out) == (0, True)
    problem = "problem={N:4,C:256,K:256,G:1,Hi:28,Wi:28,Y:3,X:3,pad_h:1,pad_w:1}"
    code, out, _ = shell("select", problem, target, uri)
    assert code == 0
    chosen = json.loads(out)
    assert chosen["kernel_name"].startswith("grouped_conv_forward_bf16_2d_")
    assert (chosen["why"], chosen["kernel_count"]) == ("model", 20)
