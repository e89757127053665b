"""Publish what others can judge and use: the tables with their splits, scores of selections, cards, and an explorer.

`write_tables` takes measurements and gives a data set with checksums and a card; `score_predictions` takes selections
and gives a :class:`Score`; `explorer_page` shows a model's selections beside measurements. It imports data, evaluate,
kernels and model; it never imports train, registry or dispatch. Used by the registry, the command line and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.publish._score import Score as Score
    from tilewise.publish._score import against_vendor as against_vendor
    from tilewise.publish._score import score_predictions as score_predictions
    from tilewise.publish._score import vendor_rates as vendor_rates
    from tilewise.publish._score import weakest_slices as weakest_slices

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_score": ("Score", "against_vendor", "score_predictions", "vendor_rates", "weakest_slices"),
    },
)
