"""Timing behind a call on a simulated device with its own clock; test_shadow_on_gpu.py uses a real one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.dispatchers import dispatcher_of
from kernels.shapes import TINY
from tilewise.collect.engines import HEAD_START_CLEARS
from tilewise.dispatch import Dispatcher, Selection
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _launch as launch
from tilewise.dispatch.shadowing import Case, Pair
from tilewise.dispatch.shadowing import _gpu_timer as gpu_timer
from tilewise.dispatch.shadowing._gpu_timer import ROUNDS, GpuTimer, queue_samples
from tilewise.errors import KernelError
from tilewise.kernels.triton.programs import family_of, interpreted
from tilewise.kernels.triton.programs._operand_tensors import integer_operands

CONV = ("grouped_conv", "forward")
FAST, SLOW = "16x16x16_taps_w1_s2_g1_k1", "16x16x16_taps_w1_s2_g3_k2"
PROBLEM = TINY["grouped_conv"]["plain"]
CLEARING_MS = 0.03


class MadeUp:
    """A device that works through a queue; the host takes `host_ms` to queue an item.

    Attributes:
        order: names of the launches.
        done: whether the device ever reaches the end.
        patient: whether a query waits for its event.
    """

    def __init__(self, host_ms: float = 0.01) -> None:
        self.host_ms, self.host, self.device = host_ms, 0.0, 0.0
        self.order: list[str] = []
        self.done, self.patient = True, False

    def work(self, ms: float, name: str = "clear") -> None:
        self.host += self.host_ms
        self.device = max(self.device, self.host) + ms
        self.order.append(name)

    def event(self) -> SimpleNamespace:
        event = SimpleNamespace(at=float("inf"))

        def record() -> None:
            event.at = self.device = max(self.device, self.host)

        event.record, event.query = record, lambda: self.done and (self.patient or event.at <= self.host)
        event.elapsed_time = lambda later: later.at - event.at
        return event


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made = MadeUp()
    monkeypatch.setattr(gpu_timer, "_event", made.event)
    monkeypatch.setattr(gpu_timer, "L2Cache", lambda: SimpleNamespace(clear=lambda: made.work(CLEARING_MS)))
    return made


def queued(device: MadeUp, iteration: int = 0, head_start: int = HEAD_START_CLEARS) -> Any:
    launches = (lambda *_: device.work(0.05, "a"), lambda *_: device.work(0.2, "b"))
    device.patient = False
    times = queue_samples(launches, (), torch.empty(0), iteration, head_start)
    device.patient = True
    return times()


class TestQueue:
    def test_kernels_are_timed_alternately_with_a_cold_cache(self, device: MadeUp) -> None:
        times = queued(device)
        assert times.production == pytest.approx((0.05,) * ROUNDS)
        assert times.candidate == pytest.approx((0.2,) * ROUNDS)
        assert times.cost_ms == pytest.approx(device.device, abs=0.02)  # everything included
        assert "".join(name[0] for name in device.order) == "cccc" + "ab" + "cacb" + "cbca" + "cacb"

    def test_the_other_begins_the_next_time(self, device: MadeUp) -> None:
        queued(device, iteration=1)
        assert "".join(name[0] for name in device.order)[6:] == "cbca" + "cacb" + "cbca"

    def test_samples_that_waited_for_the_host_are_dropped(self, device: MadeUp) -> None:
        device.host_ms = 1.0
        times = queued(device)
        assert (times.production, times.candidate) == ((), ())
        assert times.cost_ms > 15  # the time is spent nevertheless

    def test_a_device_that_is_busy_with_other_work_gives_all_the_time_it_needs(self, device: MadeUp) -> None:
        device.host_ms, device.device = 1.0, 100.0
        assert len(queued(device).production) == ROUNDS

    def test_a_longer_start_makes_up_for_a_pause_of_the_host(self, device: MadeUp) -> None:
        def pausing(ms: float) -> Any:
            def launch(*_: Any) -> None:
                device.host += 0.2
                device.work(ms)

            return launch

        launches = (pausing(0.05), pausing(0.2))
        for head_start, whole in ((HEAD_START_CLEARS, False), (32, True)):
            device.patient = False
            times = queue_samples(launches, (), torch.empty(0), 0, head_start)
            device.patient = True
            assert (len(times().production) == ROUNDS) == whole  # type: ignore[union-attr]

    def test_not_before_the_device_is_done(self, device: MadeUp) -> None:
        device.done = False
        assert queued(device) is None


@pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")
class TestStart:
    @pytest.fixture(autouse=True)
    def _a_gpu(self, device: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launch, "_failed", Recent(16))
        monkeypatch.setattr(gpu_timer, "interpreted", lambda: False)
        device.patient = True
        for name, value in {
            "device": lambda _: nullcontext(), "get_device_name": lambda: "made up",
            "get_device_properties": lambda _: SimpleNamespace(L2_cache_size=1000), "mem_get_info": lambda: (2**30, 0),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)

    @pytest.fixture
    def dispatcher(self) -> Dispatcher:
        return dispatcher_of(*CONV, FAST, SLOW)

    @pytest.fixture
    def operands(self) -> tuple[torch.Tensor, ...]:
        return integer_operands(family_of(*CONV), PROBLEM, "fp16", "cpu", seed=7)

    def start(self, dispatcher: Dispatcher, operands: tuple[torch.Tensor, ...], out: torch.Tensor) -> Any:
        generation = dispatcher._selector.generation
        ours, theirs = (Selection(k, generation.pool.names[i], 1.0, "model") for i, k in enumerate(dispatcher.kernels))
        case = Case(PROBLEM, ours)
        case.candidate = theirs
        self.timer, self.pair, self.case = GpuTimer(), Pair(generation, generation), case
        return self.timer.start(self.pair, case, operands, out)

    @pytest.mark.long
    def test_results_go_elsewhere(self, dispatcher: Dispatcher, operands: tuple[torch.Tensor, ...]) -> None:
        out = dispatcher.run(PROBLEM, *operands)
        before = [t.clone() for t in (*operands, out)]
        running = self.start(dispatcher, operands, out)
        assert running is not None
        assert running() is not None
        assert all(torch.equal(a, b) for a, b in zip((*operands, out), before, strict=True))

    @pytest.mark.long
    def test_a_device_that_never_waits_makes_the_next_start_longer(
        self, dispatcher: Dispatcher, operands: tuple[torch.Tensor, ...]
    ) -> None:
        running = self.start(dispatcher, operands, dispatcher.run(PROBLEM, *operands))
        before = self.timer.cost_ms(self.pair, self.case)
        assert running().production == ()  # each sample counts as reached before it was queued
        assert self.timer.cost_ms(self.pair, self.case) > before

    @pytest.mark.long
    def test_not_where_memory_lacks(
        self, dispatcher: Dispatcher, operands: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = dispatcher.run(PROBLEM, *operands)
        needed = 2 * 1000 + out.numel() * 2 + 4 * family_of(*CONV).workspace_elements(dispatcher.kernels[1], PROBLEM)
        for free, starts in ((4 * needed - 1, False), (4 * needed, True)):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 0))
            assert (self.start(dispatcher, operands, out) is not None) == starts

    def test_not_during_a_capture(
        self, dispatcher: Dispatcher, operands: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = dispatcher.run(PROBLEM, *operands)
        monkeypatch.setattr(gpu_timer, "is_capturing", lambda: True)
        assert self.start(dispatcher, operands, out) is None

    def test_not_before_production_ran(self, dispatcher: Dispatcher, operands: tuple[torch.Tensor, ...]) -> None:
        assert self.start(dispatcher, operands, torch.empty(0)) is None

    def test_another_kernel_than_production_s_pick(self, operands: tuple[torch.Tensor, ...]) -> None:
        dispatcher = dispatcher_of(*CONV, "16x16x24_taps_w1_s2_g1_k1", FAST)  # no tile has 24
        out = dispatcher.run(PROBLEM, *operands)
        with pytest.raises(KernelError, match=r"production's .*16x16x24.* could not be launched, .*16x16x16.* was"):
            self.start(dispatcher, operands, out)
