"""The pages of cards: the models' and the data set's, from the results of ``learning/targets.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning.targets import HOLDOUT, selection_ratios
from benchmarks.results import RESULTS, load
from tilewise.markdown import table
from tilewise.ops import Target
from tilewise.publish import CardFacts, card_of, model_card

_INTRODUCTION = """\
# Model cards

One for each committed target, generated from `benchmarks/results`. The [leaderboard](../leaderboard.md) has other
methods beside them, and [evaluation](../evaluation.md) explains the figures. The registry shows a version's own card.
"""
# Committed measurements that were imported, by arch: what their column `origin` says.
_ORIGINS = {
    "gfx950": "gfx950_forward_bf16_train.csv",
    "gfx942": "gfx942130.HIP.fdb.txt.bz2",
    "gfx90a": "gfx90a68.HIP.fdb.txt.bz2",
}


def cards_page(results: Path = RESULTS) -> str:
    """Return the page, with the targets in the order of their names.

    Raises:
        DataError: a result file is damaged.
    """
    cards = [f"## `{r['target']}`\n\n{_card(r)}\n" for r in map(load, sorted(results.glob("target_*.json")))]
    return "\n".join([_INTRODUCTION, *cards])


def dataset_page(results: Path = RESULTS) -> str:
    """Return the card of the published tables, with the sizes that the committed results state.

    Raises:
        DataError: a result file is damaged.
    """
    found = [load(path) for path in sorted(results.glob("target_*.json"))]
    rows = [[f"`{r['target']}`", str(r["pool_size"]), str(r["holdout"]["n_problems"])] for r in found]
    tables = table(("target", "kernels", "holdout problems"), rows)
    return card_of(tables, [Target.parse(r["target"]) for r in found], HOLDOUT)


def _card(result: Mapping[str, Any]) -> str:
    target, vendor = Target.parse(result["target"]), result["vendor"]
    cv, held = result["cv"], result["holdout"]
    return model_card(
        CardFacts(
            target=target,
            pool_size=result["pool_size"],
            split_rule=f"{cv['n_problems']} problems judged in {result['n_splits']} folds, {held['n_problems']} in the "
            f"{result['split_rule']}",
            figures={"cross-validated": cv, "holdout": held},
            n_holdout=held["n_problems"],
            origins=[_ORIGINS.get(target.arch, "")],
            weakest=result.get("weakest", ("not recorded with this result; `tilewise evaluate` prints them",)),
            vendor=vendor and selection_ratios(vendor),
            whole_pool=result["whole_pool"],
        )
    )
