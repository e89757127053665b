"""Sources of fake engines; workers find them by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from collect.fake import LOG, SLOW
from collect.sweep import HurriedEngine
from tilewise.collect import Plan
from tilewise.collect.engines import Device, EngineFactory


class KindEngine(HurriedEngine):
    """Hurried engine on a device of a kind."""

    def __init__(self, kind: str, plan: Plan, index: int) -> None:
        super().__init__(plan, index)
        self._kind = kind

    def device(self) -> Device:
        return Device(self._kind, f"{self._kind}-{os.getpid()}", None, "none", "made_up")


@dataclass(frozen=True)
class FakeSource:
    """Source of fake engines.

    Attributes:
        log: file that lists each measured pair.
        slow_s: seconds that each kernel takes.
        kinds: names of the devices, one for each GPU of the machine.
    """

    log: str
    slow_s: float = 0.0
    kinds: tuple[str, ...] = ("fake",)

    def factory(self, plan: Plan) -> EngineFactory:
        os.environ[LOG], os.environ[SLOW] = self.log, str(self.slow_s)
        return partial(KindEngine, self.kinds[int(os.environ.get("CUDA_VISIBLE_DEVICES", "0")) % len(self.kinds)])
