"""Shadowing: a second model ranks beside the one in production, and a few calls time the kernels of both.

Takes the decisions and launches of a dispatcher and appends observations (:class:`tilewise.gate.Observation`) to the
shadow journal; a call never fails or waits for it. Members load lazily: timing on a GPU needs torch. Used by the
dispatcher, ``tilewise shadow`` and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.dispatch.shadowing._pair import Case as Case
    from tilewise.dispatch.shadowing._pair import Pair as Pair
    from tilewise.dispatch.shadowing._pair import PairTimes as PairTimes
    from tilewise.dispatch.shadowing._pair import expected_ms as expected_ms
    from tilewise.dispatch.shadowing._shadow import SHADOW_JOURNAL as SHADOW_JOURNAL
    from tilewise.dispatch.shadowing._shadow import Shadow as Shadow
    from tilewise.dispatch.shadowing._shadow_figures import ShadowFigures as ShadowFigures
    from tilewise.dispatch.shadowing._timers import PendingTimes as PendingTimes

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_pair": (
            "Case",
            "Pair",
            "PairTimes",
            "expected_ms",
        ),
        "_shadow": (
            "SHADOW_JOURNAL",
            "Shadow",
        ),
        "_shadow_figures": ("ShadowFigures",),
        "_timers": ("PendingTimes",),
    },
)
