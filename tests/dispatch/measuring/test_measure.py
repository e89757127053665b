"""Measuring on the spot with a real GPU, and the error without one.

On a GPU: ``PYTHONPATH=src:tests python3 -m pytest -m gpu tests/dispatch/measuring/test_measure.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tilewise.arch import load_arch
from tilewise.collect import collect_with_engine, load_plan, summarize_samples
from tilewise.collect.engines import ReplayTable, describe_gpu, replay_engine
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.measuring import GpuMeasurer, MeasurementJob
from tilewise.dispatch.measuring import _measure as measure
from tilewise.dispatch.measuring._machine import this_machine
from tilewise.dispatch.measuring._measure import measure_job
from tilewise.errors import MeasurementError
from tilewise.kernels import Pool, load_pool
from tilewise.ops import GroupedConvProblem, Target

TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)


@pytest.fixture(scope="module")
def pool() -> Pool:
    whole = load_pool(TARGET)
    able = [k for k, can in zip(whole.kernels, whole.supported(PLAIN), strict=True) if can]
    return replace(whole, kernels=tuple(able[:5]))


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_the_measuring_process_reports_it(pool: Pool) -> None:
    assert describe_gpu(None) is None
    assert this_machine() is None
    assert GpuMeasurer().machine(TARGET) is None
    with pytest.raises(MeasurementError, match="there is no GPU on this machine"):
        measure_job(GpuMeasurer(), MeasurementJob(TARGET, load_arch("sm90"), pool, {PLAIN: [0, 2]}))


@pytest.mark.long
def test_the_measurements_of_the_process_come_back(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way to the worker and back, with a replay table in place of the GPU."""
    from synthetic import measurements

    rows = measurements(TARGET.name, 3, 6)
    rows.to_parquet(tmp_path / "recorded.parquet")
    recorded = ReplayTable.load(tmp_path / "recorded.parquet", TARGET)
    jobs = {recorded.problems[0]: [0, 2, 5], recorded.problems[1]: [1, 3]}

    def run(command: Sequence[str]) -> None:
        plan, table = map(Path, command[-2:])
        collect_with_engine(load_plan(plan), table, replay_engine(tmp_path / "recorded.parquet"), [0], lambda *_: None)

    monkeypatch.setattr(measure, "_run", run)
    names = recorded.pool.names
    every = measure_job(GpuMeasurer(), MeasurementJob(TARGET, load_arch("sm90"), recorded.pool, jobs))
    assert list(every) == list(jobs)
    for (problem, kernels), found in zip(jobs.items(), every.values(), strict=True):
        assert {k: o.status for k, o in found.items()} == {
            k: recorded.outcome(problem, names[k]).status for k in kernels
        }
        expected = {k: ms for k in kernels if (ms := recorded.latency_ms(problem, names[k])) is not None}
        measured = {k: summarize_samples(o.samples)["latency_ms"] for k, o in found.items() if o.samples is not None}
        assert measured == pytest.approx(expected, rel=1e-4)
        assert measured


@pytest.mark.gpu
def test_on_this_gpu(pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fastest kernel is remembered, this process's stream and flags stay, and measuring again gives the same."""
    machine = this_machine()
    assert machine is not None
    assert machine.device == torch.cuda.get_device_name(0)
    assert machine.arch == "sm{}{}".format(*torch.cuda.get_device_capability(0))
    stream, tf32 = torch.cuda.current_stream(), torch.backends.cudnn.allow_tf32
    target = replace(TARGET, arch=machine.arch)
    first, again = (Dispatcher(target, pool, None, switches=Switches()).select(PLAIN) for _ in range(2))
    assert first.why == "measured"
    assert again == first._replace(why="cache")
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "another"))
    repeated = Dispatcher(target, pool, None, switches=Switches()).select(PLAIN)
    assert first.measured_ms is not None
    assert repeated.measured_ms == pytest.approx(first.measured_ms, rel=0.2)
    assert (torch.cuda.current_stream(), torch.backends.cudnn.allow_tf32) == (stream, tf32)


@pytest.mark.gpu
def test_nothing_is_measured_during_capture(pool: Pool) -> None:
    dispatcher = Dispatcher(TARGET, pool, None, switches=Switches())
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(8, device="cuda")
    with torch.cuda.graph(graph):
        x += 1
        during = dispatcher.select(PLAIN)
    assert during.why == "fallback"
    assert dispatcher.select(PLAIN).why == "measured"
