"""How much of the GPU's time shadowing may take: accounts of what calls spent and what timing them spent."""

from __future__ import annotations

import math

NEVER = 2**62  # calls


class Account:
    """Milliseconds that calls took, and that timing took.

    Whoever adds to `served_ms` does so without a lock: an addition that two threads lose makes the budget smaller.
    """

    __slots__ = ("served_ms", "spent_ms")

    def __init__(self) -> None:
        self.served_ms = self.spent_ms = 0.0

    def affords(self, ms: float, share: float) -> bool:
        """Whether spending so much more keeps to the share."""
        return self.spent_ms + ms <= share * self.served_ms

    def calls_until(self, ms: float, share: float, ms_a_call: float) -> int:
        """After how many more calls of this length it affords so much."""
        missing = self.spent_ms + ms - share * self.served_ms
        if missing <= 0:
            return 0
        earned = share * ms_a_call
        return min(math.ceil(missing / earned), NEVER) if earned else NEVER
