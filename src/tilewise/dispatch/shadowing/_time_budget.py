"""Accounts of the GPU time that calls take and that timing them may take."""

from __future__ import annotations

import math

NEVER = 2**62  # calls
MAX_SAVED_MS = 60_000.0  # of calls; bounds the savings, so that those of a quiet day are not spent in a busy second


class TimeAccount:
    """An account of GPU time: calls earn a share of their time, which timing spends.

    Attributes:
        served_ms: milliseconds that calls took. Threads add to it without a lock; a lost addition only makes the budget
            smaller.
        gone_ms: milliseconds of the share that timing spent, or that were forfeited beyond :data:`MAX_SAVED_MS`.
    """

    __slots__ = ("gone_ms", "served_ms")

    def __init__(self) -> None:
        self.served_ms = self.gone_ms = 0.0

    def affords(self, ms: float, share: float) -> bool:
        """Return whether spending `ms` more keeps the spent time within `share` of the served time."""
        self.gone_ms = max(self.gone_ms, share * (self.served_ms - MAX_SAVED_MS))
        return self.gone_ms + ms <= share * self.served_ms

    def calls_until(self, ms: float, share: float, ms_per_call: float) -> int:
        """Return after how many more calls of this length the account affords `ms`."""
        missing = self.gone_ms + ms - share * self.served_ms
        if missing <= 0:
            return 0
        earned = share * ms_per_call
        return NEVER if not earned or ms > share * MAX_SAVED_MS else min(math.ceil(missing / earned), NEVER)
