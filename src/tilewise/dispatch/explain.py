"""Why a kernel was selected: the decision, the ranking, and the features that set the winner apart from the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewise.dispatch import source
from tilewise.dispatch.folder import cache_folder
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.journal import describe
from tilewise.dispatch.selection import Decision
from tilewise.errors import ArtefactError, DataError
from tilewise.model.artefact import load_artefact
from tilewise.model.attribution import contributions
from tilewise.model.trained import TrainedModel
from tilewise.ops import Problem

if TYPE_CHECKING:
    import numpy as np

ESTIMATE = "launch estimate"  # what is added to the trees' scores counts as one feature
FEATURES = 8


def explain(generation: Generation, problem: Problem, decision: Decision, seconds: float = 0.0) -> dict[str, Any]:
    """A decision as plain data.

    Returns:
        What the journal holds of it, and ``supported`` (how many kernels may be selected), ``runner_up`` and
        ``features``: those that set the model's first apart from its second, most important first, each with both
        values and the percentage of TFLOPS that it makes. Both are empty where no model decides or one kernel is left.
    """
    told = describe(generation, problem, decision, seconds, datetime.now(UTC))
    told["supported"] = int(generation.supported(problem).sum())
    told["runner_up"], told["features"] = None, []
    ranking = [name for name, _ in told["ranking"][:2]]
    if generation.model is not None and len(ranking) == 2:
        winner, other = (generation.pool.names.index(name) for name in ranking)
        told["runner_up"] = ranking[1]
        told["features"] = compare(generation.model, problem, winner, other)[:FEATURES]
    return told


def compare(model: TrainedModel, problem: Problem, winner: int, other: int) -> list[dict[str, Any]]:
    """The features in which two kernels of the pool differ for a problem, the most important first.

    Returns:
        Dictionaries of ``feature``, ``unit``, ``meaning``, ``winner`` and ``runner_up`` (values), and ``percent``: by
        how much the feature makes the winner's TFLOPS higher; the factors of all multiply to the ratio of the two
        predictions (with the label log1p: of 1 + TFLOPS).
    """
    pair = [winner, other]
    columns = {name: values[pair] for name, values in model.pool.columns.items()}
    matrix = model.matrix(problem.to_dict(), columns)
    shares = contributions(model.scores, *matrix)
    found = [
        _row(f.name, f.unit, f.meaning, values, share)
        for f, values, share in zip(model.features.features, matrix.T, shares.tolist(), strict=True)
        if share
    ]
    rates = model.log_rates(problem.to_dict(), columns)
    if rates is not None:
        meaning = "what the launch takes by its waves, bytes and steps; the trees correct it"
        found.append(_row(ESTIMATE, "TFLOPS", meaning, [math.exp(r) for r in rates], float(rates[0] - rates[1])))
    return sorted(found, key=lambda row: -abs(math.log1p(row["percent"] / 100)))


def _row(name: str, unit: str, meaning: str, values: np.ndarray | list[float], share: float) -> dict[str, Any]:
    one, two = (float(v) for v in values)
    return {
        "feature": name,
        "unit": unit,
        "meaning": meaning,
        "winner": one,
        "runner_up": two,
        "percent": 100 * math.expm1(share),
    }


def agrees(line: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a journal's line has the ranking that the model gives now."""
    then, now = line["ranking"], told["ranking"]
    return [name for name, _ in then] == [name for name, _ in now] and all(
        (x is None and y is None) or math.isclose(x, y, rel_tol=1e-6) for (_, x), (_, y) in zip(then, now, strict=True)
    )


def model_of(line: Mapping[str, Any], folder: str | Path, uri: str | None) -> TrainedModel | None:
    """The model that made a decision: in a folder, among the local copies, or in the registry.

    Args:
        line: of a journal.
        folder: a model folder to try first.
        uri: of the registry.

    Returns:
        None where no model decided.

    Raises:
        DataError: the model is nowhere.
        RegistryUnavailableError: it is in none of the folders, and the registry is away.
    """
    wanted, target = line["content_hash"], line["target"]
    if wanted is None:
        return None
    copies = (cache_folder() / "models").glob(f"*/{target}/{wanted}")
    for place in (Path(folder), *copies):
        try:
            model = load_artefact(place)
        except ArtefactError:
            continue
        if model.content_hash == wanted:
            return model
    fetched = source.by_hash(target, wanted, uri=uri)
    if fetched is None:
        raise DataError(f"the model {wanted[:12]} of {target} that decided is neither in {folder} nor in the registry")
    return fetched.model
