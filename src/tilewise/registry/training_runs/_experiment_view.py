"""The view in which MLflow shows a target's experiment: the columns and charts that compare models.

MLflow keeps a view that was shared as a tag of the experiment, and opens it by a link. The format is that of MLflow 3's
pages, which it does not document; a page that does not understand it shows its own columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

VIEW = "tilewise"
CHARTS = "compareRunsMode=CHART"  # parameter of the view's address for charts in place of the table
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"

_FIGURES = ("mean_efficiency", "p10_efficiency", "min_efficiency")
_COLUMNS = (
    *(f"metrics.`cv/{name}`" for name in _FIGURES),
    *(f"metrics.`holdout/{name}`" for name in _FIGURES),
    "tags.`gate_decision`",
    "attributes.`Models`",
)
_CURVES = ("by_problems/mean_efficiency", "by_trees/mean_efficiency")
_SEARCHED = ("n_estimators", "num_leaves", "learning_rate", "n_features")
_SECTION = "compare"


def view_link(experiment_id: str) -> str:
    """Return the address of the view on MLflow's pages, from their root."""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


def view_state() -> str:
    """Return the view as the value of :data:`VIEW_TAG`."""
    return json.dumps(
        {
            "searchFilter": "tags.`tilewise.kind` != 'trial'",
            "selectedColumns": _COLUMNS,
            "compareRunCharts": list(_charts()),
            "isAccordionReordered": True,  # else the pages sort the sections by name
            "compareRunSections": [_section(_SECTION, "Comparison")],
        },
        separators=(",", ":"),
    )


def _charts() -> Iterator[dict[str, object]]:
    for stage in ("cv", "holdout"):
        for name in _FIGURES:
            yield _chart("BAR", f"{stage}/{name}", metricKey=f"{stage}/{name}")
    for key in _CURVES:
        yield _chart("LINE", key, metricKey=key, selectedMetricKeys=[key])
    objective = "cv/mean_efficiency"
    yield _chart("PARALLEL", "settings", selectedParams=_SEARCHED, selectedMetrics=[objective], showAllRuns=True)


def _chart(kind: str, name: str, **fields: object) -> dict[str, object]:
    return {"type": kind, "uuid": f"{VIEW} {name}", "displayName": name, "metricSectionId": _SECTION, **fields}


def _section(uuid: str, name: str) -> dict[str, object]:
    return {"uuid": uuid, "name": name, "display": True, "isReordered": False, "deleted": False, "isGenerated": False}
