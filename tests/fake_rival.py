"""Stands for a GPU in the vendor benchmark's worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewise.collect import Plan

LOST_AT = 3  # at this problem device 1 breaks; whatever it is asked afterwards is left undone


class FakeRival:
    """Measures at once: the vendor takes (index + 1) times as long as the pool."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan = plan
        self._index = index
        self.lost = False

    def problem(self, index: int, picks: Sequence[int], selected: int | None) -> dict[str, Any]:
        if not picks:
            return {"index": index, "status": "no valid kernel recorded"}
        if index == LOST_AT and self._index == 1:
            self.lost = True
            return {"index": index, "status": "failed", "error": "illegal memory access"}
        ratio = float(index + 1)
        measured = {"index": index, "status": "measured", "backend": "Cudnn", "ratio": ratio, "differing": {}}
        if selected is None:
            return measured
        times = {"oracle_ms": 1.0, "pick_ms": 1.0 if selected in picks else 1.25, "vendor_ms": ratio}
        return {**measured, "pick": self._plan.pool.names[selected], **times}
