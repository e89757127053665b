"""Publish what others can judge and use: the tables with their splits, scores of selections, cards, and an explorer.

`write_tables` takes measurements and gives a data set with checksums and a card; `score_predictions` takes selections
and gives a :class:`Score`; `explorer_page` shows a model's selections beside measurements. It imports data, evaluate,
kernels and model; it never imports train, registry or dispatch. Used by the registry, the command line and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.publish._explorer import explorer_data as explorer_data
    from tilewise.publish._explorer import explorer_page as explorer_page
    from tilewise.publish._explorer import render as render
    from tilewise.publish._model_card import CardFacts as CardFacts
    from tilewise.publish._model_card import model_card as model_card
    from tilewise.publish._model_card import slice_in_words as slice_in_words
    from tilewise.publish._score import Score as Score
    from tilewise.publish._score import against_vendor as against_vendor
    from tilewise.publish._score import score_predictions as score_predictions
    from tilewise.publish._score import vendor_rates as vendor_rates
    from tilewise.publish._score import weakest_slices as weakest_slices
    from tilewise.publish._tables import PublishedTable as PublishedTable
    from tilewise.publish._tables import card as card
    from tilewise.publish._tables import card_of as card_of
    from tilewise.publish._tables import write_tables as write_tables

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_explorer": ("explorer_data", "explorer_page", "render"),
        "_model_card": ("CardFacts", "model_card", "slice_in_words"),
        "_score": ("Score", "against_vendor", "score_predictions", "vendor_rates", "weakest_slices"),
        "_tables": ("PublishedTable", "card", "card_of", "write_tables"),
    },
)
