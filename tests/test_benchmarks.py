"""The benchmarks without a GPU: synthetic engines and times, the vendor's calls on a CPU, picks, figures."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks import report
from benchmarks.learning import blocks, runs
from benchmarks.measuring import collect_rate, do_bench, two_versions
from benchmarks.results import RESULTS, load, quantiles, save, spread_evenly
from benchmarks.runtime import run_overhead
from benchmarks.scale import figures, made_up
from benchmarks.vendor import compare as vendor
from benchmarks.vendor import figures as vendor_figures
from benchmarks.vendor import groups, picks, rival

from fake_rival import FakeRival
from small_model import write_model
from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.collect import Item, Outcome, Plan, Samples, Timing
from tilewise.collect.engines import Device
from tilewise.data.quality import prepare_files
from tilewise.dispatch import Dispatcher
from tilewise.errors import ConfigError, DataError
from tilewise.kernels import load_pool, unsupported
from tilewise.markdown import fill
from tilewise.ops import OPS, GroupedConvProblem, Problem, Target

TARGET = Target.parse(CONV)


def plan_of(count: int) -> Plan:
    items = tuple(Item(GroupedConvProblem(1, 8 * (i + 1), 16, 1, 8, 8, 1, 1), "test") for i in range(count))
    return Plan(TARGET, load_arch("sm90"), load_pool(TARGET), items, Timing(), "test")


class MadeUp:
    """A timer: every supported kernel takes (its index + 1) us, without noise."""

    def __init__(self, plan: Plan, index: int = 0) -> None:
        self._plan = plan
        self._index = index

    def device(self) -> Device:
        return Device("made up", f"made-up-{self._index}", None, "none", "none")

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool = False
    ) -> list[Outcome]:
        outcomes = dict(known)
        for i, kernel in enumerate(self._plan.pool.kernels):
            if i not in outcomes:
                why = unsupported(kernel, item.problem, self._plan.target.variant)
                ms = 1e-3 * (i + 1)
                outcomes[i] = Outcome("unsupported", why) if why else Outcome("ok", None, Samples((ms,) * 3, (), 1))
        return [outcomes[i] for i in range(len(self._plan.pool))]


class TestResults:
    @pytest.mark.parametrize(("count", "wanted"), [(1828, 300), (10, 10), (3, 7), (7, 3), (5, 1)])
    def test_a_sample_is_evenly_spread(self, count: int, wanted: int) -> None:
        at = spread_evenly(count, wanted)
        assert len(set(at)) == len(at) == min(count, wanted)
        assert at[0] == 0
        steps = {b - a for a, b in itertools.pairwise([*at, count])}
        assert max(steps) - min(steps) <= 1

    def test_saved_figures_come_back(self, tmp_path: Path) -> None:
        values = {"benchmark": "x", "empty": [], "entries": [{"a": 1.5}, {"a": None}], "ints": [1, 2]}
        save(tmp_path / "x.json", values)
        assert load(tmp_path / "x.json") == values
        assert '  {"a": 1.5},\n' in (tmp_path / "x.json").read_text()

    def test_quantiles_of_reciprocal_ratios_average_to_one(self) -> None:
        assert quantiles([0.25, 4.0, 0.5, 2.0])["geomean"] == pytest.approx(1.0)

    @pytest.mark.parametrize("content", ["[1]", "{", None])
    def test_no_result_file(self, content: str | None, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / "x.json").write_text(content)
        with pytest.raises(DataError, match=r"x\.json"):
            load(tmp_path / "x.json")


class TestCollectRate:
    @pytest.mark.long
    def test_counts_what_two_workers_did(self) -> None:
        plan = collect_rate.sample(plan_of(8), 5)
        run = collect_rate.one_run(plan, 2, MadeUp, lambda what, done, of: None)
        supported = sum(
            unsupported(k, item.problem, "forward") is None for item in plan.items for k in plan.pool.kernels
        )
        assert run["valid"] == supported
        assert run["rows"] == 5 * len(plan.pool)
        assert sum(run["problems_a_device"]) == 5
        assert run["rate"] == pytest.approx(supported / run["sweep_s"])
        assert 0 < run["sweep_s"] < run["wall_s"]

    def test_text_compares_with_one(self) -> None:
        runs = [
            {"devices": n, "valid": 1000, "sweep_s": s, "rate": 1000 / s, "rate_of_all": r, "wall_s": s + 9}
            for n, s, r in ((1, 2.0, 500.0), (4, 0.5, 2100.0))
        ]
        assert "| 4 | 1,000 | 0.5 | 2000 | 4.00x | 2100 | 4.20x | 9.5 |" in collect_rate.text({"runs": runs})

    def test_the_rate_of_all_leaves_out_when_one_is_idle(self) -> None:
        first = [collect_rate.Noted(t, t + 1, "a", 10) for t in range(4)]
        second = [collect_rate.Noted(1.5, 2.5, "b", 20), collect_rate.Noted(2.5, 3.5, "b", 20)]
        assert collect_rate.rate_of_all([first]) == pytest.approx(10)
        assert collect_rate.rate_of_all([first, second]) == pytest.approx(30)
        assert collect_rate.rate_of_all([first[:1], second]) is None


class TestDoBench:
    def test_the_same_kernels_are_compared(self) -> None:
        plan = plan_of(3)

        def twice(item: Item, which: Sequence[int]) -> list[tuple[float, float]]:
            return [(2e-3 * (i + 1), 0.2) for i in which]

        entries = do_bench.compare(plan, MadeUp(plan), twice, 7, lambda n: None)
        assert len(entries) == 3 * 7
        assert {e["tilewise_ms"] / e["do_bench_ms"] for e in entries} == {0.5}
        supported = [unsupported(k, plan.items[0].problem, "forward") is None for k in plan.pool.kernels]
        assert all(supported[plan.pool.names.index(e["kernel_name"])] for e in entries[:7])

    def test_summary_tells_short_from_long_kernels(self) -> None:
        entries = [
            {"problem": 0, "tilewise_ms": ms, "do_bench_ms": ms * ratio, "tilewise_s": 0.002, "do_bench_s": 0.2}
            for ms, ratio in ((0.01, 1.5), (0.5, 1.01), (2.0, 0.99), (3.0, 1.0))
        ]
        summary = do_bench.summarise(entries, 0.001)
        assert (summary["faster"], summary["faster_in_a_sweep"]) == (pytest.approx(100), pytest.approx(200))
        groups = {a["group"]: a for a in summary["agreement"]}
        assert groups["above 20 us"]["n"] == 3
        assert groups["above 20 us"]["agree"] == 1
        assert groups["above 20 us"]["apart"] == pytest.approx(0.0099, abs=1e-4)
        assert groups["below 20 us"]["agree"] == 0
        assert "| above 20 us | 3 | 0.99% | 100% |" in do_bench.text({"summary": summary})

    def test_a_kernel_that_failed_is_kept_but_not_compared(self) -> None:
        good = {"problem": 0, "tilewise_ms": 1.0, "do_bench_ms": 1.0, "tilewise_s": 0.002, "do_bench_s": 0.2}
        summary = do_bench.summarise([good, {**good, "tilewise_ms": None}], 0.001)
        assert summary["agreement"][0]["n"] == 1

    def test_one_problem_of_long_kernels_does_not_decide_the_median(self) -> None:
        def entry(problem: int, ours: float, theirs: float) -> dict[str, Any]:
            both = {"tilewise_ms": 1.0, "do_bench_ms": 1.0}
            return {"problem": problem, "tilewise_s": ours, "do_bench_s": theirs, **both}

        summary = do_bench.summarise([entry(0, 0.002, 0.14), entry(1, 1.0, 2.0), entry(2, 0.002, 0.12)], 0.001)
        assert summary["faster_median"] == pytest.approx(60)
        assert summary["faster"] < 3


class TestRunOverhead:
    def test_the_median_batch_counts_and_waiting_does_not(self) -> None:
        """Use a synthetic clock: calls take 2 and 3 us, one batch is disturbed, and `before` takes an hour."""
        now = 0.0

        def spend(us: float) -> Callable[[], None]:
            def work() -> None:
                nonlocal now
                now += us * 1e-6

            return work

        disturbed = iter([0.0] * 5 + [500.0] + [0.0] * 1000)
        works = {"direct": spend(2.0), "run": lambda: (spend(3.0)(), spend(next(disturbed))())}
        found = run_overhead.host_us(works, 10, 5, spend(3.6e9), spend(3.6e9), lambda: now)
        assert found == {"direct": pytest.approx(2.0), "run": pytest.approx(3.0)}

    @pytest.mark.parametrize(("name", "pipeline", "split", "problem"), run_overhead.CASES)
    def test_the_pools_have_the_cases(self, name: str, pipeline: str, split: bool, problem: Problem) -> None:
        pool = load_pool(Target.parse(name))
        kernel = run_overhead.kernel_of(pool, pipeline, split, problem)
        assert (kernel.pipeline, kernel.split_k > 1) == (pipeline, split)

    def test_text_says_the_worst(self) -> None:
        times = {"direct_us": 8.0, "run_out_us": 9.5, "run_us": 11.0, "empty_us": 1.5}
        cases = [{"target": CONV, "kernel": "k", **times, "overhead_us": o} for o in (1.5, -0.25)]
        assert "At most 1.5 us over a direct launch; the goal is 5." in run_overhead.text(cases)


class TestPicks:
    @pytest.fixture
    def picked(self) -> dict[str, Any]:
        return picks.pick(measurements(CONV, 40, 12, repeats=10), TARGET, 0.3, 4)

    def test_picks_are_the_fastest_of_every_validation_problem(self, picked: dict[str, Any], tmp_path: Path) -> None:
        save(tmp_path / "picks.json", picked)
        plan, chosen, _ = vendor.read_picks(tmp_path / "picks.json")
        table = measurements(CONV, 40, 12)
        assert 4 < len(plan.items) < 25
        for item, which in zip(plan.items, chosen, strict=True):
            rows = table[(table[list(item.problem.to_dict())] == list(item.problem.to_dict().values())).all(axis=1)]
            best = rows[rows["is_valid"]].sort_values("latency_ms")["kernel_name"].head(4)
            assert [plan.pool.names[i] for i in which] == best.to_list()

    def test_a_problem_without_a_valid_kernel_stays(self, tmp_path: Path) -> None:
        table = measurements(CONV, 12, 12)
        first = table["N"].index < 12
        table.loc[first, ["status", "is_valid"]] = ["timeout", False]
        values = picks.pick(table, TARGET, 1.0, 4)
        assert (len(values["picks"]), values["picks"][0]) == (12, [])

    def test_a_model_s_selections_are_recorded(self, tmp_path: Path) -> None:
        dispatcher = Dispatcher.from_folder(write_model(tmp_path / "model"))
        save(tmp_path / "picks.json", picks.pick(measurements(CONV, 40, 12), TARGET, 0.3, 2, dispatcher))
        plan, chosen, values = vendor.read_picks(tmp_path / "picks.json")
        assert values["model"] == dispatcher.content_hash
        selected = [dispatcher.select(item.problem).kernel for item in plan.items]
        assert [plan.pool.kernels[i] for i in values["selected"]] == selected
        assert all(len(which) == 2 for which in chosen)

    def test_a_model_of_another_target_is_refused(self, tmp_path: Path) -> None:
        other = Dispatcher.from_pool("grouped_conv_forward_fp16_sm90")
        with pytest.raises(ConfigError, match="grouped_conv_forward_fp16_sm90, not of"):
            picks.pick(measurements(CONV, 5, 5), TARGET, 1.0, 2, other)

    def test_nothing_held_out_is_said(self) -> None:
        with pytest.raises(DataError, match=r"no validation problem of grouped_conv_forward_bf16_sm90"):
            picks.pick(measurements(CONV, 5, 5), TARGET, 0.0, 4)

    def test_a_damaged_file_is_said(self, picked: dict[str, Any], tmp_path: Path) -> None:
        save(tmp_path / "picks.json", {**picked, "picks": picked["picks"][1:]})
        with pytest.raises(DataError, match=r"picks\.json: \d+ problems, but \d+ picks"):
            vendor.read_picks(tmp_path / "picks.json")


class TestVendor:
    def test_even_rounds_choose_and_odd_rounds_judge(self) -> None:
        ours = {"lucky": (1.0, 3.0) * 4, "steady": (2.0, 2.0) * 4}
        found = rival.judged(ours, {"library": (4.0, 6.0) * 4})
        assert (found["kernel"], found["oracle_ms"], found["vendor_ms"], found["ratio"]) == ("lucky", 3.0, 6.0, 2.0)

    def test_summary_leaves_no_problem_out(self) -> None:
        slices = {"family": "1x1", "size": "tiny", "bound": "memory"}
        done = {"status": "measured", "backend": "Cudnn", "differing": {}, **slices}
        entries = [
            {**done, "ratio": 2.0},
            {**done, "ratio": 0.5, "size": "large"},
            {"status": "unsupported by the vendor", **slices},
        ]
        summary = vendor_figures.summarise({"target": CONV, "problems": 5, "entries": entries})
        assert summary["states"] == {"measured": 2, "unsupported by the vendor": 1, "not reached": 2}
        groups = {g["group"]: g for g in summary["groups"]}
        assert groups["all"]["geomean"] == pytest.approx(1.0)
        assert groups["all"]["won"] == 0.5
        assert groups["size: large"]["n"] == 1
        assert "2 not reached" in vendor_figures.text({"target": CONV, "problems": 5, "entries": entries})

    def test_picks_are_held_against_both(self) -> None:
        """Hand-computed: half the oracle's speed and as fast as the vendor; then the oracle itself, 4 x the vendor."""
        slices = {"family": "1x1", "size": "tiny", "bound": "memory"}
        done = {"status": "measured", "backend": "Cudnn", "differing": {}, "ratio": 2.0, "pick": "k", **slices}
        entries = [
            {**done, "oracle_ms": 1.0, "pick_ms": 2.0, "vendor_ms": 2.0},
            {**done, "oracle_ms": 1.0, "pick_ms": 1.0, "vendor_ms": 4.0},
            {**done, "oracle_ms": 1.0, "vendor_ms": 4.0},
        ]
        result = {"target": CONV, "problems": 3, "entries": entries}
        found = vendor_figures.summarise(result)["picks"]
        assert found["failed"] == 1
        assert (found["efficiency"]["mean"], found["efficiency"]["min"]) == (0.75, 0.5)
        assert found["vendor"]["geomean"] == pytest.approx(2.0)
        assert "| the model's picks | 2 | 75.00% |" in vendor_figures.text(result)
        assert "1 picks failed" in vendor_figures.text(result)

    def test_a_run_is_complete_after_another_start(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broken device loses its problem and leaves the others to the next start."""
        monkeypatch.setattr(vendor, "compile_ahead", lambda *args: {})
        monkeypatch.setattr(vendor, "machine", dict)
        picked = picks.pick(measurements(CONV, 40, 12), TARGET, 0.3, 4)
        picked["picks"][0] = []
        save(tmp_path / "picks.json", picked)
        args = (tmp_path / "picks.json", tmp_path / "out.json")
        vendor.run(*args, [0, 1], 1, 0.0, FakeRival)  # no time: nothing, or next to nothing, is begun
        first = vendor.run(*args, [1], 1, 60.0, FakeRival)
        assert len(first["entries"]) < first["problems"]
        second = vendor.run(*args, [0, 2], 1, 60.0, FakeRival)
        assert load(tmp_path / "out.json") == second
        assert [e["index"] for e in second["entries"]] == list(range(len(picked["picks"])))
        assert [e["status"] for e in second["entries"][:2]] == ["no valid kernel recorded", "measured"]
        assert all(e["family"] and e["problem"]["C"] for e in second["entries"])

    def test_a_run_with_a_model_has_its_picks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vendor, "compile_ahead", lambda *args: {})
        monkeypatch.setattr(vendor, "machine", dict)
        dispatcher = Dispatcher.from_folder(write_model(tmp_path / "model"))
        save(tmp_path / "picks.json", picks.pick(measurements(CONV, 40, 12), TARGET, 0.1, 2, dispatcher))
        result = vendor.run(tmp_path / "picks.json", tmp_path / "out.json", [0], 1, 60.0, FakeRival)
        assert result["model"] == dispatcher.content_hash
        assert all(e["pick_ms"] in (1.0, 1.25) for e in result["entries"])

    def test_results_of_other_picks_are_not_continued(self, tmp_path: Path) -> None:
        save(tmp_path / "r.json", {"picks_sha256": "a", "entries": [{"index": 3}]})
        assert vendor._earlier(tmp_path / "r.json", "a") == {3: {"index": 3}}
        with pytest.raises(DataError, match="belongs to other picks"):
            vendor._earlier(tmp_path / "r.json", "b")

    @pytest.mark.parametrize("variant", ["forward", "bwd_data", "bwd_weight"])
    @pytest.mark.parametrize("problem", [
        GroupedConvProblem(2, 6, 4, 2, 7, 6, 3, 3, stride_h=2, pad_h=1, pad_w=1, dilation_w=2),
        GroupedConvProblem(2, 4, 4, 4, 5, 5, 3, 3, pad_h=1, pad_w=1),
        GroupedConvProblem(1, 4, 6, 1, 5, 5, 3, 1, Di=4, Z=2, stride_d=2, pad_d=1),
        GroupedConvProblem(3, 8, 1, 1, 1, 1, 1, 1),
    ])  # fmt: skip
    def test_the_vendor_computes_the_same_convolution(self, variant: str, problem: GroupedConvProblem) -> None:
        torch = pytest.importorskip("torch")
        from benchmarks.vendor.calls import vendor_of

        from tilewise.kernels.triton.programs import family_of

        family = family_of("grouped_conv", variant)
        operands = [torch.randn(shape) for shape in family.operands(problem)]
        made = vendor_of(Target("grouped_conv", variant, "bf16", "sm90"), problem, operands)
        result = made.to_ours(next(iter(made.calls.values()))())
        assert tuple(result.shape) == family.result(problem)
        torch.testing.assert_close(result, family.reference(problem, *operands), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("layout", ["rcr", "rrr", "crr", "ccr"])
    def test_the_vendor_computes_the_same_product(self, layout: str) -> None:
        torch = pytest.importorskip("torch")
        from benchmarks.vendor.calls import VendorUnsupportedError, vendor_of

        from tilewise.kernels.triton.programs import family_of
        from tilewise.ops import GemmProblem

        problem, family = GemmProblem(5, 7, 3, layout), family_of("gemm", "universal")
        operands = [torch.randn(shape, dtype=torch.float16) for shape in family.operands(problem)]
        made = vendor_of(Target("gemm", "universal", "fp16", "sm90"), problem, operands)
        result = made.to_ours(made.calls["cublas"]())
        torch.testing.assert_close(result.float(), family.reference(problem, *operands), rtol=1e-2, atol=1e-2)
        if layout != "rcr":
            with pytest.raises(VendorUnsupportedError, match="rcr only"):
                vendor_of(Target("gemm", "universal", "fp8", "sm90"), problem, operands)


@pytest.mark.long
def test_scripts_need_nothing_but_the_measuring_side() -> None:
    """Scripts for a bare GPU machine import neither pandas nor similar libraries, directly or through tilewise."""
    code = (
        "import sys; import benchmarks.measuring.collect_rate, benchmarks.measuring.do_bench; "
        "import benchmarks.vendor.compare, benchmarks.vendor.calls, benchmarks.runtime.run_overhead; "
        "import tilewise.collect.engines._stopwatch; "
        "print(sorted({'pandas', 'yaml', 'hydra', 'rich', 'lightgbm', 'mlflow', 'matplotlib'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_made_up_rows_break_no_rule(tmp_path: Path) -> None:
    rows = made_up.write_table(tmp_path, 1000)
    prepared = prepare_files(tmp_path, made_up.TARGET)
    assert len(prepared.frame) == rows
    assert not len(prepared.quarantined)


class TestReport:
    def test_the_page_holds_what_the_committed_results_give(self) -> None:
        text = report.PAGE.read_text()
        assert report.page(text, RESULTS) == text, "run `python -m benchmarks.report`"
        growth = report.GROWTH.read_text()
        assert fill(growth, figures.blocks(RESULTS)) == growth, "run `python -m benchmarks.report`"

    def test_results_become_tables(self, tmp_path: Path) -> None:
        machine = {
            "devices": ["NVIDIA H200"] * 4,
            "driver": "1",
            "torch": "2",
            "triton": "3",
            "cores": 64,
            "measured_at": "2026-01-01T00:00:00+00:00",
        }
        common = {"target": CONV, "machine": machine, "problems": 2}
        runs = [{"devices": 1, "valid": 10, "sweep_s": 2.0, "rate": 5.0, "rate_of_all": 5.0, "wall_s": 3.0}]
        save(tmp_path / "collect_rate.json", {**common, "kernels": 110, "compile_s": 9.0, "runs": runs})
        slices = {"family": "1x1", "size": "tiny", "bound": "memory"}
        entries = [
            {"index": 0, "status": "measured", "backend": "Cudnn", "ratio": 1.25, "differing": {"k": 3}, **slices},
            {"index": 1, "status": "failed", "error": "RuntimeError: too large", **slices},
        ]
        save(tmp_path / f"vendor_{CONV}.json", {**common, "entries": entries})
        filled = report.page(report.PAGE.read_text(), tmp_path)
        assert "4 x NVIDIA H200" in filled
        assert f"| `{CONV}` | 1 | 1.25 |" in filled
        assert "1 x failed: RuntimeError: too large" in filled
        assert "On 1 a result differs" in filled
        assert "| bound: memory | 1 |" in filled


def test_blocks_are_limited_by_whichever_runs_out() -> None:
    sm90 = load_arch("sm90")
    assert blocks.blocks(98_328, 90, 8, sm90) == 2  # shared memory: 233,472 bytes a unit
    assert blocks.blocks(0, 90, 8, sm90) == 65536 // (96 * 256)  # registers, 96 of them a thread
    assert blocks.blocks(0, 16, 1, sm90) == 32  # blocks
    assert blocks.blocks(0, 16, 8, sm90) == 8  # threads
    assert blocks.blocks(230_000, 255, 8, sm90) == 1


def test_successive_runs_are_whole_runs_of_every_problem() -> None:
    frame = measurements(n_problems=6, n_kernels=20, repeats=6, failures=0)
    named = dict(runs.successive_runs(frame, "grouped_conv"))
    assert [set(rows["run_id"]) for rows in named.values()] == [{"synthetic-1"}, {"synthetic-2"}]
    assert sum(map(len, named.values())) == len(frame)
    partly = frame.drop(frame[frame["run_id"] == "synthetic-2"].index[:10])  # half of a problem's kernels
    assert list(dict(runs.successive_runs(partly, "grouped_conv"))) == ["synthetic-1"]


class TestTwoVersions:
    def test_problems_are_those_whose_channels_8_does_not_divide(self) -> None:
        shapes = [(16, 16, 1), (12, 16, 1), (16, 3, 1), (24, 24, 24), (48, 48, 4)]
        entries = [
            {"target": f"grouped_conv_forward_{dtype}_sm90", "problem": conv(c, k, g).to_dict()}
            for dtype in ("bf16", "fp16")
            for c, k, g in shapes
        ]
        entries.append({"target": "gemm_universal_bf16_sm90", "problem": {"M": 3, "N": 4, "K": 5}})
        found = two_versions.half_aligned({"entries": entries}, 2)
        assert list(found) == ["grouped_conv_forward_bf16_sm90", "grouped_conv_forward_fp16_sm90"]
        assert all([(p.C, p.K, p.G) for p in some] == [(16, 3, 1), (12, 16, 1)] for some in found.values())

    def test_the_fastest_kernels_of_both_versions_are_compared(self) -> None:
        old = measurements("grouped_conv_forward_bf16_sm90", 3, 6)
        new = old.assign(latency_ms=old["latency_ms"] / 2)
        entries = two_versions.compared("grouped_conv_forward_bf16_sm90", old, new)
        assert len(entries) == 3
        assert all(e["median"] == e["least"] == pytest.approx(2) == e["old_ms"] / e["new_ms"] for e in entries)
        assert "| 2.00 | 2.00 |" in two_versions.text({"entries": entries})


def conv(c: int, k: int, groups: int) -> GroupedConvProblem:
    return GroupedConvProblem(2, c, k, groups, 8, 8, 3, 3)


def test_groups_are_compared_by_their_kind() -> None:
    """The call takes three times as long as the fastest kernel, on each of four kinds of groups."""
    frame = measurements(n_problems=8, n_kernels=4)
    dimensions = list(OPS["grouped_conv"].column_names())
    shapes = {"C": [64, 96, 64, 60], "K": [64, 96, 128, 48], "G": [4, 4, 4, 4]}
    usual = {"Y": 3, "X": 3, "pad_h": 1, "pad_w": 1, "dilation_h": 1, "dilation_w": 1, "Di": 1, "Z": 1}
    some = frame.drop_duplicates(dimensions)[dimensions].head(4)
    frame = frame.merge(some, on=dimensions)
    place = frame.groupby(dimensions, sort=False).ngroup()
    frame = frame.assign(**{n: place.map(dict(enumerate(v))) for n, v in shapes.items()}, **usual, backend="triton")
    calls = frame.loc[frame.groupby(place)["latency_ms"].idxmin()]
    calls = calls.assign(backend="vendor", kernel_name="vendor_cudnn", latency_ms=3 * calls["latency_ms"])
    slides = frame.loc[frame.groupby(place)["latency_ms"].idxmin()].assign(pipeline="slide", num_stages=9)
    slides = slides.assign(kernel_name="slide", latency_ms=slides["latency_ms"] / 2)
    ratios = groups.slowness(pd.concat([frame, calls]), Target.parse(CONV))
    found = groups.summary(ratios)
    by_kind = {row["kind"]: (row["problems"], row["median"]) for row in found}
    kinds = ("16 to 16 channels", "24 to 24 channels", "another number, 8 divides both", "another number")
    assert by_kind == dict.fromkeys(kinds, (1, 3.0))
    assert ratios["others"].isna().all()  # no kernel of the pipeline ran
    found = groups.gain(groups.slowness(pd.concat([frame, calls, slides]), Target.parse(CONV)))
    gained = {(row["problems"], row["slide"]): (row["n"], row["geomean"]) for row in found if row["problems"] == "all"}
    assert gained == {("all", "with"): (4, 6.0), ("all", "without"): (4, 3.0)}
