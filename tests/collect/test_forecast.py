"""A forecast counts pairs as the rules do, says why others are dropped, and uses the rate of an earlier run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collect.test_journal import DEVICES
from tilewise.arch import load_arch
from tilewise.collect import Item, Outcome, Plan, Samples, Timing, forecast_plan
from tilewise.collect.__main__ import main
from tilewise.collect._forecast import rate_of_table
from tilewise.collect._journal import Journal
from tilewise.collect._run import journal_path
from tilewise.errors import DataError
from tilewise.kernels import load_pool, unsupported
from tilewise.ops import GroupedConvProblem, Target


@pytest.fixture
def whole() -> Plan:
    """Plan of the whole pool over problems that each drop some kernels."""
    target = Target.parse("grouped_conv_forward_bf16_sm90")
    problems = (
        GroupedConvProblem(1, 64, 64, 1, 14, 14, 3, 3),
        GroupedConvProblem(8, 256, 512, 1, 28, 28, 1, 1),
        GroupedConvProblem(2, 32, 32, 32, 112, 112, 3, 3),
        GroupedConvProblem(1, 3, 64, 1, 224, 224, 7, 7),
    )
    items = tuple(Item(p, "test") for p in problems)
    return Plan(target, load_arch("sm90"), load_pool(target), items, Timing(), "run-1")


def test_pairs_and_reasons_are_those_of_the_rules(whole: Plan, tmp_path: Path) -> None:
    seen = forecast_plan(whole, tmp_path / "out.parquet", [0])
    reasons = Counter(unsupported(k, i.problem, "forward", "bf16") for i in whole.items for k in whole.pool.kernels)
    assert seen.pairs == reasons.pop(None)
    assert seen.dropped == reasons
    assert seen.orphans == 0
    assert f"{seen.pairs} supported pairs of {4 * len(whole.pool)}" in str(seen)
    for reason in reasons:
        assert f"dropped: {reason}" in str(seen)


def test_two_devices_take_half_the_time(whole: Plan, tmp_path: Path) -> None:
    one, two = (forecast_plan(whole, tmp_path / "out.parquet", devices).measure_s for devices in ([0], [0, 1]))
    assert one == pytest.approx(2 * two)
    assert one > 0


def test_problems_of_the_journal_are_not_counted_and_give_the_rate(plan: Plan, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    good = Outcome("ok", None, Samples((1.0,), (), 1))
    with Journal(journal_path(output), plan) as journal:
        for i in range(3):
            journal.add(i, f"2026-01-01T00:00:{2 * i:02}+00:00", DEVICES[0], [good] * 4 + [Outcome("unsupported")] * 2)
    seen = forecast_plan(plan, output, [0])
    assert (seen.problems, seen.done) == (5, 3)
    assert seen.measure_s == pytest.approx(seen.pairs / 2)  # four pairs in two seconds
    assert "the journal's 2 pairs a second" in seen.basis


def test_the_rate_of_a_table_is_per_gpu_and_without_pauses(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    times = {"a": ("00:00:00", "00:00:02", "05:00:00", "05:00:02"), "b": ("00:00:01", "00:00:05")}
    rows = [
        {"hw_uuid": gpu, "measured_at": f"2026-01-01T{at}+00:00", "status": status}
        for gpu, at_all in times.items()
        for at in at_all
        for status in ("ok", "timeout", "unsupported")
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert rate_of_table(path) == pytest.approx(6 / 8)  # three problems of two pairs, in 2 + 2 + 4 seconds
    pq.write_table(pa.Table.from_pylist(rows[:3]), path)
    with pytest.raises(DataError, match="too few problems"):
        rate_of_table(path)
    path.write_bytes(b"no table")
    with pytest.raises(DataError, match="not a measurement table"):
        rate_of_table(path)


def test_the_command_of_a_bare_machine_forecasts_and_refuses(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "plan.json", tmp_path / "out.parquet"
    file.write_text(plan.dumps())
    assert main([str(file), str(output), "--dry-run", "--devices", "0,1"]) == 0
    assert "5 problems, 0 of them done; 5 x 6 kernels left" in capsys.readouterr().out
    assert main([str(file), str(output), "--devices", "x"]) == 2
    assert "--devices takes GPU indices" in capsys.readouterr().err
    assert main([str(file), str(output), "--budget-s", "0"]) == 4
    assert "5 of 5 problems are left" in capsys.readouterr().err
    output.write_bytes(b"mine")
    assert main([str(file), str(output)]) == 2
    assert "exists already" in capsys.readouterr().err
