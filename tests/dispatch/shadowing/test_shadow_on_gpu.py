"""Timing behind calls on a GPU: true times, unchanged results, streams and graphs, and a kept budget.

``PYTHONPATH=src:tests python3 -m pytest -m gpu tests/dispatch/shadowing/test_shadow_on_gpu.py`` (needs no LightGBM)
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.dispatchers import dispatcher_of
from kernels.shapes import REAL
from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _launch as launch
from tilewise.dispatch.measuring import GpuMeasurer
from tilewise.dispatch.shadowing import Case, Pair, PairTimes, Shadow
from tilewise.dispatch.shadowing._gpu_timer import ROUNDS, GpuTimer
from tilewise.gate import read_observations
from tilewise.kernels.triton.programs import family_of, random_operands
from tilewise.ops import GroupedConvProblem, Problem

pytestmark = pytest.mark.gpu

CONV = ("grouped_conv", "forward")
FAST, SLOW, SPLIT = "128x128x64_taps_w8_s3_g8_k1", "16x16x32_taps_w2_s4_g1_k1", "64x64x32_taps_w4_s3_g1_k4"
PROBLEM = REAL["grouped_conv"]["resnet 3x3"]
LARGE = GroupedConvProblem(N=64, C=256, K=256, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)  # longer than a launch
CALLS = 60_000


@pytest.fixture(autouse=True)
def _from_a_fresh_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_failed", Recent(16))
    monkeypatch.setenv("TILEWISE_MEASURE", "off")


def operands(problem: Problem = PROBLEM) -> tuple[torch.Tensor, ...]:
    return random_operands(family_of(*CONV), problem, "bf16", "cuda", 0)


def start(
    ours: Dispatcher, theirs: Dispatcher, operands: tuple[torch.Tensor, ...], out: torch.Tensor, iteration: int = 0
) -> Any:
    """Time the dispatchers' only kernels."""
    picks = [Selection(d.kernels[0], d._selector.generation.pool.names[0], 300.0, "model") for d in (ours, theirs)]
    case = Case(PROBLEM, picks[0])
    case.candidate, case.observed = picks[1], iteration
    pair, timer = Pair(ours._selector.generation, theirs._selector.generation), GpuTimer()
    timer.prepare(pair, case)
    return timer.start(pair, case, operands, out)


def both(config: str, other: str) -> tuple[Dispatcher, Dispatcher]:
    return dispatcher_of(*CONV, config, dtype="bf16"), dispatcher_of(*CONV, other, dtype="bf16")


@pytest.mark.parametrize("other", [SLOW, SPLIT])
def test_true_times_and_untouched_results(other: str) -> None:
    ours, theirs = both(FAST, other)
    given = operands()
    out = ours.run(PROBLEM, *given)
    right = out.clone()
    found: list[PairTimes] = []
    for iteration in range(6):
        running = start(ours, theirs, given, out, iteration)
        torch.cuda.synchronize()
        assert torch.equal(out, right)
        found.append(running())
    kept = [t for t in found if len(t.production) == ROUNDS]
    assert len(kept) >= 4
    for times in kept[1:]:
        assert all(0 < ms < times.cost_ms for ms in (*times.production, *times.candidate))
    if other == SLOW:
        assert all(min(t.candidate) > 1.5 * max(t.production) for t in kept[1:])
    same = start(ours, ours, given, out)
    torch.cuda.synchronize()
    ratio = sorted(same().production)[1] / sorted(same().candidate)[1]
    assert ratio == pytest.approx(1, abs=0.1)


def test_it_waits_for_nothing() -> None:
    ours, theirs = both(FAST, SLOW)
    given = operands()
    out = ours.run(PROBLEM, *given)
    start(ours, theirs, given, out)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    running = start(ours, theirs, given, out)
    assert running() is None
    torch.cuda.synchronize()
    assert len(running().production) == ROUNDS


def test_on_the_stream_of_the_call() -> None:
    ours, theirs = both(FAST, SLOW)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        given = operands()
        out = ours.run(PROBLEM, *given)
        running = start(ours, theirs, given, out)
    stream.synchronize()
    assert running() is not None


def test_a_capture_is_left_alone() -> None:
    ours, theirs = both(FAST, SLOW)
    given = operands()
    right = ours.run(PROBLEM, *given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ours.run(PROBLEM, *given)
        assert start(ours, theirs, given, out) is None
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, right)


def _generation(dispatcher: Dispatcher, tflops: float, content_hash: str) -> Any:
    """Build a generation whose model picks the dispatcher's only kernel."""
    pick = Selection(dispatcher.kernels[0], dispatcher._selector.generation.pool.names[0], tflops, "model")
    return SimpleNamespace(
        target=dispatcher.target, model="made up", version=1, content_hash=content_hash, decisions={},
        rank=lambda *_: (pick,), launcher=dispatcher._selector.generation.launcher, pick=pick,
    )  # fmt: skip


def test_the_budget_is_kept_by_the_clock(tmp_path: Path) -> None:
    """The share of the device's time is taken from events around all calls, not from the shadow's accounts."""
    ours, theirs = both(FAST, SLOW)
    given = operands(LARGE)
    out = ours.run(LARGE, *given)
    production, candidate = _generation(ours, 300.0, "a" * 64), _generation(theirs, 100.0, "b" * 64)
    production.known[LARGE] = production.pick
    switches = Switches(shadow=str(tmp_path), shadow_journal=str(tmp_path / "j"))  # the default budget
    shadow = Shadow(ours.target, switches, None, GpuMeasurer())
    shadow._candidate, shadow._has_looked = candidate, True
    shadow.follow(production)
    for _ in range(CALLS):
        ours.run(LARGE, *given, out=out)
        shadow.on_run(production, LARGE, given, out)
    torch.cuda.synchronize()
    shadow.on_run(production, LARGE, given, out)
    spent = shadow.spent_ms
    shadow.close()
    seen = [o for o in read_observations(tmp_path / "j").valid if o.production.ms]
    assert len(seen) >= 2
    assert all(o.error is None for o in seen)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        ours.run(LARGE, *given, out=out)
    end.record()
    torch.cuda.synchronize()
    assert spent < 0.01 * begin.elapsed_time(end)
