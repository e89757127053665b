"""Search configurations outside the pool by a model's scores, and find out by measuring whether they beat the pool.

`search` takes a model and a problem and gives the best configurations found. `plan_search_campaign` gives a plan that
measures found and pool kernels side by side, `judge_search_campaign` reads its table. They import collect, data,
kernels and model; they never measure. Used by `tilewise search`.
"""

from __future__ import annotations

from tilewise.campaigns.search._search import SearchSettings, search
from tilewise.campaigns.search._search_campaign import (
    judge_search_campaign,
    plan_search_campaign,
    simulate_searches,
    validation_rows,
)

__all__ = [
    "SearchSettings",
    "judge_search_campaign",
    "plan_search_campaign",
    "search",
    "simulate_searches",
    "validation_rows",
]
