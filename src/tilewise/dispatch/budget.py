"""How much of the GPU's time shadowing may take: accounts of what calls spent and what timing them spent."""

from __future__ import annotations

import math

NEVER = 2**62  # calls
SAVED_MS = (
    60_000.0  # of calls: no more is saved up than these earned, so that a quiet day is not spent in a busy second
)


class Account:
    """Milliseconds that calls took, and what of their share is gone: for timing, or forfeited.

    Whoever adds to `served_ms` does so without a lock: an addition that two threads lose makes the budget smaller.
    """

    __slots__ = ("gone_ms", "served_ms")

    def __init__(self) -> None:
        self.served_ms = self.gone_ms = 0.0

    def affords(self, ms: float, share: float) -> bool:
        """Whether spending so much more keeps to the share."""
        self.gone_ms = max(self.gone_ms, share * (self.served_ms - SAVED_MS))
        return self.gone_ms + ms <= share * self.served_ms

    def calls_until(self, ms: float, share: float, ms_a_call: float) -> int:
        """After how many more calls of this length it affords so much."""
        missing = self.gone_ms + ms - share * self.served_ms
        if missing <= 0:
            return 0
        earned = share * ms_a_call
        return NEVER if not earned or ms > share * SAVED_MS else min(math.ceil(missing / earned), NEVER)
