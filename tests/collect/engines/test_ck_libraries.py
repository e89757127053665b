"""Measuring through CK Tile's C API: compiled libraries with invented times, and libraries that misbehave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import pyarrow.parquet as pq

from kernels.ck.stubs import conv_name, gemm_name, log_of, model_of, needs_compiler, stub
from tilewise.arch import load_arch
from tilewise.capi import build
from tilewise.cli.main import main
from tilewise.collect import CollectLimits, Item, Outcome, Plan, Timing, collect_from_libraries, summarize_samples
from tilewise.collect.__main__ import main as collect_main
from tilewise.collect.engines import FoundKernels, find_library_kernels
from tilewise.collect.engines import _ck_libraries as ck_kernels
from tilewise.data import read_raw_measurements
from tilewise.data.quality import prepare_measurements
from tilewise.errors import ConfigError
from tilewise.kernels.ck import LIBRARY_TYPES, CkLibraries, chosen_kernel
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

pytestmark = needs_compiler
GEMM = Target.parse("gemm_universal_fp16_gfx942")
PROBLEMS = (GemmProblem(32, 64, 48), GemmProblem(64, 32, 16), GemmProblem(48, 16, 16))
TIMEOUT_S = 2.0


def _quiet(what: str, done: int, of: int) -> None:
    pass


def found_in(folder: Path, target: Target = GEMM, problems: Sequence[Problem] = PROBLEMS) -> FoundKernels:
    return find_library_kernels(target, CkLibraries.find(target.op, str(folder), "host"), problems)


def plan_of(found: FoundKernels, target: Target = GEMM, problems: Sequence[Problem] = PROBLEMS, **timing: Any) -> Plan:
    items = tuple(Item(p, "test") for p in problems)
    settings = Timing(kernel_timeout_s=TIMEOUT_S, **timing)
    return Plan(target, load_arch(target.arch), found.pool(target), items, settings, "run-1")


def measured(folder: Path, target: Target = GEMM, problem: Problem = PROBLEMS[0], **timing: Any) -> list[Outcome]:
    """Measure the kernels of the libraries in a folder, in this process."""
    files = CkLibraries.find(target.op, str(folder), "host").files
    found = FoundKernels({_kernel_of(target, file, problem): file for file in files}, "host")
    plan = plan_of(found, target, [problem], **timing)
    return found.engine(plan)(plan, 0).measure(plan.items[0], {}, lambda kernel: None)


def _kernel_of(target: Target, file: Path, problem: Problem) -> str:
    with LIBRARY_TYPES[target.op].open(file) as library:
        name = chosen_kernel(library, problem, target)
        assert name is not None
        return name


def _times(outcomes: Sequence[Outcome]) -> list[float | None]:
    return [None if o.samples is None else float(summarize_samples(o.samples)["latency_ms"] or 0) for o in outcomes]


class TestEngine:
    def test_times_are_the_libraries_own(self, tmp_path: Path) -> None:
        for tile, ms in ((16, 0.5), (32, 0.25), (64, 2)):
            stub(tmp_path, f"k{tile}", gemm_name(tile, pads=True), MS=ms)
        outcomes = measured(tmp_path)
        assert _times(outcomes) == [0.5, 0.25, 2]
        assert all(o.samples is not None and o.samples.unrolled == 1 for o in outcomes)
        assert outcomes[1].samples is not None
        assert len(outcomes[1].samples.times) > 5

    def test_the_median_of_repeated_runs_counts(self, tmp_path: Path) -> None:
        """Each run reports another time: 1, 2, 3, ... ms. The first only decides how often the kernel is timed."""
        stub(tmp_path, "k", gemm_name(16), MS="({ static int runs; ++runs; })")
        (outcome,) = measured(tmp_path, rounds=5, budget_ms=1000)
        assert outcome.samples is not None
        assert outcome.samples.times == (2, 3, 4, 5, 6)

    def test_a_kernel_that_fails_later_has_no_time(self, tmp_path: Path) -> None:
        stub(tmp_path, "a", gemm_name(16), MISBEHAVE="{ static int runs; if (++runs > 3) return -4; }")
        stub(tmp_path, "b", gemm_name(32, pads=True))
        failed, good = measured(tmp_path)
        assert (failed.status, failed.samples, good.status) == ("runtime_error", None, "ok")
        assert "a.so: dispatcher_run_gemm returned -4" in str(failed.error)

    @pytest.mark.parametrize("variant", ["forward", "bwd_data", "bwd_weight"])
    def test_convolutions(self, tmp_path: Path, variant: str) -> None:
        target = Target.parse(f"grouped_conv_{variant}_bf16_gfx950")
        problem = GroupedConvProblem(2, 32, 16, 2, 5, 6, 3, 3, pad_h=1)
        direction = ["forward", "bwd_data", "bwd_weight"].index(variant)
        for tile, macros in ((16, {"MS": 2}), (32, {"MS": 3}), (64, {"CHEAT": 1})):
            name = conv_name(tile, variant=variant, dtype="bf16")
            stub(tmp_path, f"k{tile}", name, CONV=1, DTYPE="bf16", DIRECTION=direction, **macros)
        outcomes = measured(tmp_path, target, problem)
        assert _times(outcomes) == [2, 3, None]
        assert outcomes[2].status == "wrong_result"

    def test_our_own_library_of_one_kernel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its times are real."""
        _, path = model_of(tmp_path, gemm_name(16))
        monkeypatch.setenv("TILEWISE_GEMM_MODEL", str(path))
        (outcome,) = measured(build())
        assert outcome.status == "ok"
        assert outcome.samples is not None
        assert 0 < min(outcome.samples.times) < 1000

    def test_kernels_that_rules_or_library_refuse_are_unsupported(self, tmp_path: Path) -> None:
        stub(tmp_path, "a", gemm_name(16))
        stub(tmp_path, "b", gemm_name(32, pads=True))
        files = {gemm_name(16): tmp_path / "a.so", gemm_name(32, pads=True): tmp_path / "b.so"}
        plan = plan_of(found := FoundKernels(files, "host"), problems=[GemmProblem(16, 16, 17)])
        by_rules, by_library = found.engine(plan)(plan, 0).measure(plan.items[0], {}, lambda kernel: None)
        assert by_rules == Outcome("unsupported", "tile_k must divide K")
        assert by_library == Outcome("unsupported", "b.so does not support it")


class TestCollecting:
    """Collecting through worker processes."""

    @pytest.mark.long
    def test_each_misbehaviour_costs_one_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CK_STUB_LOG", str(tmp_path / "calls.log"))
        hurt, well = GemmProblem(64, 32, 24), GemmProblem(32, 64, 48)
        behaviours: list[tuple[dict[str, Any], str, str]] = [
            ({"MISBEHAVE": "return -1"}, "runtime_error", r"k0.so: dispatcher_run_gemm returned -1"),
            ({"MISBEHAVE": "abort()"}, "runtime_error", r"the worker died \(exit code -6\)"),
            ({"MISBEHAVE": "*(volatile int *)0 = 1"}, "runtime_error", r"the worker died \(exit code -11\)"),
            ({"MISBEHAVE": "for (;;) sleep(1)"}, "timeout", "no answer within 2 s"),
            ({"MS": "(p->of.gemm.m == 32)"}, "runtime_error", "k4.so gives a time of 0 ms"),
            ({"CHEAT": "size == 64"}, "wrong_result", "1 of 2048 elements beyond the tolerance"),
            ({"TILE": 16}, "unsupported", "k6.so does not support it"),
            ({}, "ok", "None"),
        ]
        for i, (macros, *_) in enumerate(behaviours):
            stub(tmp_path, f"k{i}", gemm_name(16 * (i + 1), pads=True), **{"TILE": 8, "HURT": 64, **macros})
        found = found_in(tmp_path, problems=[hurt, well])
        report = collect_from_libraries(
            plan_of(found, problems=[hurt, well]), tmp_path / "out.parquet", found, "all", _quiet
        )
        rows = pq.read_table(report.path).to_pylist()
        assert [(r["M"], r["kernel_name"]) for r in rows] == [(m, name) for m in (64, 32) for name in found.files]
        assert [r["status"] for r in rows] == [*(status for _, status, _ in behaviours), *["ok"] * 8]
        for row, (_, _, error) in zip(rows, behaviours, strict=False):
            assert re.search(error, str(row["error"])), row
        assert {r["latency_ms"] for r in rows if r["is_valid"]} == {1}
        assert {r["regime"] for r in rows} == {"library"}
        calls = log_of(tmp_path / "calls.log")
        asked, last = calls[0][2], calls[-1][2]
        for process in (asked, last):  # the others were killed
            ours = [(call, name) for call, name, p in calls if p == process]
            assert sorted(n for call, n in ours if call == "init") == sorted(n for call, n in ours if call == "cleanup")

    def test_without_a_budget_nothing_is_opened(self, tmp_path: Path) -> None:
        plan = plan_of(found := FoundKernels({gemm_name(16): tmp_path / "gone.so"}, "host"))
        report = collect_from_libraries(plan, tmp_path / "o.parquet", found, [0], _quiet, CollectLimits(budget_s=0))
        assert (report.done, report.path) == (0, None)

    def test_a_plan_whose_kernels_have_no_library_is_refused(self, tmp_path: Path) -> None:
        plan = plan_of(FoundKernels({gemm_name(16): tmp_path / "a.so"}, "host"))
        other = FoundKernels({gemm_name(32): tmp_path / "a.so"}, "host")
        with pytest.raises(ConfigError, match=f"1 kernels of the plan have no library, e.g. {gemm_name(16)}"):
            collect_from_libraries(plan, tmp_path / "out.parquet", other, [0], _quiet)


class TestFinding:
    """Finding the kernel of each library; a library that cannot name one is refused by its file's name."""

    def test_kernels_are_found_in_the_order_of_files(self, tmp_path: Path) -> None:
        stub(tmp_path, "b", gemm_name(16))
        stub(tmp_path, "a", gemm_name(32).replace("gemm_universal_", "gemm_"), TILE=16)
        found = found_in(tmp_path)
        assert dict(found.files) == {gemm_name(32): tmp_path / "a.so", gemm_name(16): tmp_path / "b.so"}
        assert found.pool(GEMM).names == (gemm_name(32), gemm_name(16))

    def test_files_and_folders(self, tmp_path: Path) -> None:
        (tmp_path / "more").mkdir()
        a, b = stub(tmp_path, "a", gemm_name(16)), stub(tmp_path / "more", "b", gemm_name(32))
        libraries = CkLibraries.find("gemm", f"{a}:{tmp_path / 'more'}:{b}", "device")
        assert libraries == CkLibraries("gemm", (a, b), "host"), "a matrix product's memory is always the host's"

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("macros", "message"),
        [
            ({"INIT": "return -1"}, "dispatcher_init returned -1"),
            ({"INIT": "abort()"}, "cannot be used: it crashes when it is asked for its kernel"),
            ({"INIT": "*(volatile int *)0 = 1; return 0"}, "it crashes when it is asked"),
            ({"INIT": "for (;;) sleep(1)"}, "no answer within 4 s"),
            ({"WITHOUT_RUN": 1}, "has no function dispatcher_run_gemm"),
            ({"COUNT": 2}, "holds 2 kernels and chooses itself: build one library per kernel"),
            ({"name": "some_kernel"}, "'some_kernel' is not a CK Tile kernel name"),
            ({"name": gemm_name(16)}, "holds the same kernel as .*a.so: gemm_"),
        ],
    )
    def test_unusable_libraries_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, macros: dict[str, Any], message: str
    ) -> None:
        monkeypatch.setattr(ck_kernels, "_ANSWER_S", 4.0)
        stub(tmp_path, "a", gemm_name(16))
        stub(tmp_path, "b", **{"name": gemm_name(32), **macros})
        with pytest.raises(ConfigError, match=rf"b\.so.* {message}|b\.so:? {message}"):
            found_in(tmp_path)

    def test_kernels_of_other_targets_are_left_out(self, tmp_path: Path) -> None:
        stub(tmp_path, "a", gemm_name(16))
        stub(tmp_path, "b", gemm_name(16, dtype="bf16"))
        stub(tmp_path, "c", gemm_name(32, layout="rrr"))  # no problem has its layout
        with pytest.warns(UserWarning, match=r"[bc]\.so runs none of the 3 problems of gemm_universal_fp16_gfx942"):
            assert list(found_in(tmp_path).files) == [gemm_name(16)]
        (tmp_path / "a.so").unlink()
        with (
            pytest.warns(UserWarning, match="runs none"),
            pytest.raises(ConfigError, match="no library has a kernel for a problem of gemm_universal_fp16_gfx942"),
        ):
            found_in(tmp_path)

    @pytest.mark.parametrize(
        ("op", "paths", "memory", "message"),
        [
            ("gemm", None, None, "no CK Tile library of gemm is named: set TILEWISE_CK_GEMM_LIB"),
            ("grouped_conv", ":", None, "set TILEWISE_CK_CONV_LIB"),
            ("grouped_conv", "a.so", "both", "must be host or device, got 'both'"),
            ("softmax", "a.so", None, "CK Tile has no libraries of softmax; it has libraries of gemm, grouped_conv"),
        ],
    )
    def test_libraries_must_be_named(self, op: str, paths: str | None, memory: str | None, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            CkLibraries.find(op, paths, memory)

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=f"{tmp_path}: the folder holds no"):
            CkLibraries.find("gemm", str(tmp_path))


class TestCommands:
    @pytest.mark.long
    def test_from_libraries_to_a_prepared_table(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder, out = tmp_path / "libraries", tmp_path / "out.parquet"
        folder.mkdir()
        stub(folder, "a", gemm_name(16, pads=True), MS=0.5, TILE=1)
        stub(folder, "b", gemm_name(32, pads=True), MS=1, TILE=1)
        problems = tmp_path / "problems.csv"
        problems.write_text("M,N,K,layout,origin\n32,64,48,rcr,mine\n16,16,17,rcr,mine\n")
        settings = [f"target={GEMM.name}", f"collect.libraries={folder}", f"collect.problems={problems}"]
        assert main(["collect", *settings, f"output={out}", "collect.dry_run=true"]) == 0
        assert "2 problems, 0 of them done; 2 x 2 kernels left: 4 supported pairs of 4" in capsys.readouterr().out
        assert main(["collect", *settings, f"output={out}"]) == 0
        prepared = prepare_measurements(read_raw_measurements(out), GEMM)
        assert prepared.frame[["kernel_name", "latency_ms"]].value_counts().to_dict() == {
            (gemm_name(16, pads=True), 0.5): 2,
            (gemm_name(32, pads=True), 1.0): 2,
        }

    @pytest.mark.long
    def test_a_plan_travels(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plan, out = tmp_path / "plan.json", str(tmp_path / "out.parquet")
        stub(tmp_path, "a", gemm_name(16))
        plan.write_text(plan_of(FoundKernels({gemm_name(16): tmp_path / "a.so"}, "host")).dumps())
        assert collect_main([str(plan), out]) == 2
        assert "no CK Tile library of gemm is named" in capsys.readouterr().err
        nothing = [f"input={plan}", f"output={out}", f"collect.libraries={tmp_path}", "collect.budget_s=0"]
        assert main(["collect", *nothing]) == 4
        assert collect_main([str(plan), out, "--libraries", str(tmp_path)]) == 0
        assert pq.read_table(out)["status"].to_pylist() == ["ok"] * 3
