"""The benchmarks without a GPU: synthetic engines, times and tables, figures."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd
import pytest
from benchmarks import report
from benchmarks.learning import blocks, runs
from benchmarks.measuring import collect_rate, do_bench, two_versions
from benchmarks.results import RESULTS, load, quantiles, save, spread_evenly
from benchmarks.runtime import run_overhead
from benchmarks.scale import figures, made_up
from benchmarks.vendor import groups, kinds
from benchmarks.vendor.times import fastest_times

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.collect import Item, Outcome, Plan, Samples, Timing
from tilewise.collect.engines import Device
from tilewise.data.quality import prepare_files
from tilewise.errors import DataError
from tilewise.kernels import load_pool, unsupported
from tilewise.markdown import fill
from tilewise.ops import OPS, GemmProblem, GroupedConvProblem, Problem, Target

TARGET = Target.parse(CONV)
DIMENSIONS = list(OPS["grouped_conv"].column_names())


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
                target = self._plan.target
                why = unsupported(kernel, item.problem, target.variant, target.dtype)
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
            unsupported(k, item.problem, "forward", "bf16") is None for item in plan.items for k in plan.pool.kernels
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
        supported = [unsupported(k, plan.items[0].problem, "forward", "bf16") is None for k in plan.pool.kernels]
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


@pytest.mark.long
def test_scripts_need_nothing_but_the_measuring_side() -> None:
    """Scripts for a bare GPU machine import neither pandas nor similar libraries, directly or through tilewise."""
    code = (
        "import sys; import benchmarks.measuring.collect_rate, benchmarks.measuring.do_bench; "
        "import benchmarks.runtime.run_overhead; "
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
        figures = {"p10": 0.5, "median": 1.0, "p90": 2.0, "least": 0.25, "faster": 0.625, "within": 0.75}
        entries = [
            {"target": CONV, "slice": name, "n": n, "geomean": geomean, **figures}
            for name, n, geomean in (("all", 24, 1.25), ("bound: memory", 20, 1.5))
        ]
        save(tmp_path / "kinds.json", {"benchmark": "kinds", "entries": entries})
        filled = report.page(report.PAGE.read_text(), tmp_path)
        assert "4 x NVIDIA H200" in filled
        assert f"| `{CONV}` | 24 | 1.25 | 0.50 | 1.00 | 2.00 | 0.25 | 62% | 75% |" in filled
        assert "| bound: memory | 20 | 1.50 |" in filled
        assert "| all |" not in filled


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


class TestVendor:
    """On made-up problems, the vendor's call takes a given multiple of the fastest own kernel's time."""

    def own(self, problems: int, **shape: int | Sequence[int]) -> pd.DataFrame:
        """Return rows of own kernels; `shape` are dimensions, of each problem or of all."""
        frame = measurements(n_problems=problems, n_kernels=4, failures=0)
        place = frame.groupby(DIMENSIONS, sort=False).ngroup()
        columns = {n: v if isinstance(v, int) else place.map(dict(enumerate(v))) for n, v in shape.items()}
        return frame.assign(**columns, backend="triton")

    def fastest(self, frame: pd.DataFrame, times: float | Sequence[float], **columns: object) -> pd.DataFrame:
        """Return the row of each problem's fastest kernel as another's that takes `times` as long."""
        rows = frame.loc[frame.groupby(DIMENSIONS, sort=False)["latency_ms"].idxmin()]
        return rows.assign(**columns, latency_ms=rows["latency_ms"] * times)

    def calls(self, frame: pd.DataFrame, times: float | Sequence[float], **columns: object) -> pd.DataFrame:
        return self.fastest(frame, times, **{"backend": "vendor", "kernel_name": "vendor_cudnn", **columns})

    def slides(self, frame: pd.DataFrame, times: float) -> pd.DataFrame:
        return self.fastest(frame, times, pipeline="slide", kernel_name="slide", num_stages=9)

    def test_groups_are_compared_by_their_kind(self) -> None:
        shapes = {"C": [64, 96, 64, 60], "K": [64, 96, 128, 48], "G": [4, 4, 4, 4]}
        usual = {"Y": 3, "X": 3, "pad_h": 1, "pad_w": 1, "dilation_h": 1, "dilation_w": 1, "Di": 1, "Z": 1}
        own = self.own(4, **shapes, **usual)
        both = pd.concat([own, self.calls(own, 3)])
        ratios = groups.slowness(both, TARGET)
        by_kind = {row["kind"]: (row["problems"], row["median"]) for row in groups.summary(ratios)}
        names = ("16 to 16 channels", "24 to 24 channels", "another number, 8 divides both", "another number")
        assert by_kind == dict.fromkeys(names, (1, 3.0))
        assert ratios["others"].isna().all()  # no kernel of the pipeline ran
        found = groups.gain(groups.slowness(pd.concat([both, self.slides(own, 0.5)]), TARGET))
        gained = {(row["problems"], row["slide"]): (row["n"], row["geomean"]) for row in found}
        assert gained["all", "with"] == (4, 6.0)
        assert gained["all", "without"] == (4, 3.0)

    def test_the_fastest_times_are_of_valid_rows_of_either_side(self) -> None:
        own = self.own(4, N=[1, 2, 3, 4], G=1)
        calls = pd.concat([self.calls(own, 3), self.calls(own, 2, kernel_name="vendor_other", num_stages=8)])
        wrong = self.fastest(own[own["N"] == 1], 0.1, kernel_name="wrong", num_stages=7, is_valid=False, status="wrong")
        slides = self.slides(own[own["N"] == 4], 0.5)
        frame = pd.concat([own[own["N"] != 2], calls[calls["N"] != 3], wrong, slides], ignore_index=True)
        problems, times = fastest_times(frame, TARGET, "slide")
        least = own.groupby("N")["latency_ms"].min()
        found = {p.to_dict()["N"]: row for p, row in zip(problems, times.to_dict("records"), strict=True)}
        one = {"call_ms": 2 * least[1], "own_ms": least[1], "others_ms": least[1], "these_ms": float("nan")}
        four = {"call_ms": 2 * least[4], "own_ms": least[4] / 2, "others_ms": least[4], "these_ms": least[4] / 2}
        assert list(found) == [1, 4]  # 2 has calls alone, 3 has none
        assert found[1] == pytest.approx(one, nan_ok=True)
        assert found[4] == pytest.approx(four)

    @pytest.mark.parametrize(("sizes", "by"), [
        ((4096, 4096, 4096, "rcr"), "16"), ((4100, 4100, 4096, "rcr"), "16"), ((4096, 4096, 4088, "rcr"), "8"),
        ((4096, 4088, 4096, "rrr"), "8"), ((4088, 4096, 4100, "crr"), "8"), ((4096, 4096, 4092, "rcr"), None),
        ((512, 512, 512, "rcr"), None),
    ])  # fmt: skip
    def test_large_products_are_told_apart_by_their_rows(
        self, sizes: tuple[int, int, int, str], by: str | None
    ) -> None:
        found = [name for name, holds in kinds.KINDS["gemm"].items() if holds(GemmProblem(*sizes))]
        assert found == ([f"1e10 FLOPs or more, {by} divides rows"] if by else [])

    def test_kinds_of_too_few_problems_are_not_shown(self) -> None:
        """Compare 20 dense problems, as many as a slice needs, and 19 with narrow groups; 8 divides none of their C."""
        groups = [1] * 20 + [4] * 19
        usual = {"Hi": 14, "Wi": 14, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1, "stride_h": 1, "stride_w": 1}
        own = self.own(39, N=range(1, 40), G=groups, C=60, K=64, **usual)
        dense = [4.0] * 10 + [0.97] + [0.5] * 9
        every = dense + [8.0] * 19
        calls = self.calls(own, [ratio / 2 for ratio in every])
        table = pd.concat([own, calls, self.slides(own, 0.5)])
        found = {entry["slice"]: entry for entry in kinds.figures(table, TARGET)}
        assert {"all", "grouping: dense", "dense, 8 divides not all channels", "filter: 3x3", "dims: 2D"} <= set(found)
        hidden = ("grouping: grouped", "groups of 4 to 32 channels", "three input channels", "filter: 1x1", "dims: 3D")
        assert not set(hidden) & set(found)
        wanted = {"n": 20, "geomean": geometric_mean(dense), "p10": 0.5, "median": (4 + 0.97) / 2, "p90": 4.0}
        wanted |= {"least": 0.5, "faster": 10 / 20, "within": 11 / 20}
        for name in ("grouping: dense", "dense, 8 divides not all channels"):
            assert found[name] == pytest.approx({"target": CONV, "slice": name, **wanted}, abs=1e-3)
        shares = {"n": 39, "geomean": geometric_mean(every), "faster": 29 / 39, "within": 30 / 39}
        assert {name: found["all"][name] for name in shares} == pytest.approx(shares, abs=1e-3)
