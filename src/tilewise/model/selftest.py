"""What a reader checks a model against: what its writer saw of it.

The digest of every other file, the hashes of the feature schema and the pool, and a few problems with their features,
scores and ranking. So a model whose features this library would compute differently is refused instead of ranking
nonsense.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewise.errors import ArtefactError, UsageError
from tilewise.model.files import SELFTEST, read_json
from tilewise.model.trained import TrainedModel, ranked
from tilewise.ops import OPS, Problem

FEATURE_TOLERANCE = 1e-9  # logarithms may differ in the last bits between machines
SCORE_TOLERANCE = 1e-6
ROWS = 4  # kernels of a problem whose features are kept
RANKS = 10


def selftest(model: TrainedModel, files: Mapping[str, bytes], problems: Sequence[Problem]) -> dict[str, Any]:
    """What to check `model`, made of `files`, against: plain data."""
    return {
        "schema_hash": model.features.schema_hash,
        "pool_hash": model.pool.hash,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
        "problems": [_observe(model, problem) for problem in problems],
    }


def _observe(model: TrainedModel, problem: Problem) -> dict[str, Any]:
    """What the model makes of a problem, as plain data."""
    matrix = model.matrix(problem.to_dict(), model.pool.columns)
    scores = model.score(problem)  # by what will rank
    rank = ranked(scores)[:RANKS]
    kernels = dict.fromkeys([0, *rank[:ROWS].tolist()])  # the default, and the best
    return {
        "problem": problem.to_dict(),
        "features": {model.pool.names[i]: matrix[i].tolist() for i in kernels},
        "scores": scores[np.isfinite(scores)].tolist(),  # JSON has no infinity
        "ranking": [model.pool.names[i] for i in rank],
        "tflops": model.tflops_of_scores(problem, scores)[rank].tolist(),
    }


def verify_selftest(model: TrainedModel) -> None:
    """Check a model against the self-test among its files.

    Raises:
        ArtefactError: a file is another, or the model computes something else; the message names what.
    """
    told, where = read_json(model.files, SELFTEST, model.where), f"{model.where}: {SELFTEST}"
    try:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in model.files.items() if name != SELFTEST}
        for name in sorted(set(digests) | set(told["files"])):
            if digests.get(name) != told["files"].get(name):
                raise ArtefactError(f"{where}: {name} is not the file that was written with this model; fetch it again")
        for key, value in (("schema_hash", model.features.schema_hash), ("pool_hash", model.pool.hash)):
            if told[key] != value:
                raise ArtefactError(f"{where}: {key} is {told[key]!r}, the model has {value!r}")
        for i, expected in enumerate(told["problems"]):
            problem = OPS[model.target.op].from_dict(expected["problem"])
            _compare(expected, _observe(model, problem), model.features.names, f"{where}: problem {i}")
    except UsageError as e:
        raise e if isinstance(e, ArtefactError) else ArtefactError(f"{where}: {e}") from e
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise ArtefactError(f"{where} is damaged: {e!r}") from e


def _compare(expected: Mapping[str, Any], seen: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    remedy = "this library computes something else than the one that trained; train again"
    for kernel, row in seen["features"].items():
        if kernel not in expected["features"]:
            raise ArtefactError(f"{where}: {kernel} ranks among the best, not so when it was trained; {remedy}")
        close = np.isclose(row, expected["features"][kernel], rtol=FEATURE_TOLERANCE, atol=FEATURE_TOLERANCE)
        if not close.all():
            name = names[int(np.argmin(close))]
            raise ArtefactError(f"{where}: feature {name} of {kernel} differs; {remedy}")
    for key in ("scores", "tflops"):
        if not np.allclose(seen[key], expected[key], rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE):
            raise ArtefactError(f"{where}: {key} differ; {remedy}")
    if seen["ranking"] != expected["ranking"]:
        raise ArtefactError(f"{where}: the ranking differs; {remedy}")
