"""The self-test of a model: results of the library that wrote it, which a reader repeats.

It holds the digest of every other file, the hashes of feature schema and pool, and the features, scores and ranking of
a few problems. A library that would compute other features refuses the model instead of ranking nonsense.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from tilewise.errors import ArtefactError, UsageError
from tilewise.model._artefact_files import SELFTEST, JsonObject, read_json
from tilewise.model._trained_model import TrainedModel, ranked
from tilewise.ops import OPS, Problem

FEATURE_TOLERANCE = 1e-9  # logarithms may differ in the last bits between machines
SCORE_TOLERANCE = 1e-6
ROWS = 4  # kernels per problem whose features are stored
RANKS = 10


def selftest(model: TrainedModel, files: Mapping[str, bytes], problems: Sequence[Problem]) -> JsonObject:
    """Return the self-test of a model that is made of `files`."""
    return {
        "schema_hash": model.features.schema_hash,
        "pool_hash": model.pool.hash,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
        "problems": [_observe(model, problem) for problem in problems],
    }


def _observe(model: TrainedModel, problem: Problem) -> JsonObject:
    """Return the model's results for a problem."""
    matrix = model.matrix(problem.to_dict(), model.pool.columns)
    scores = model.score(problem)  # by the path that ranks: the core or NumPy
    rank = ranked(scores)[:RANKS]
    kernels = dict.fromkeys([0, *rank[:ROWS].tolist()])  # the default kernel and the best
    return {
        "problem": problem.stated(),
        "features": {model.pool.names[i]: matrix[i].tolist() for i in kernels},
        "scores": scores[np.isfinite(scores)].tolist(),  # JSON has no infinity
        "ranking": [model.pool.names[i] for i in rank],
        "tflops": model.tflops_of_scores(problem, scores)[rank].tolist(),
    }


def verify_digests(files: Mapping[str, bytes], where: str) -> None:
    """Compare each file with its digest in the self-test, before any other file is parsed.

    Raises:
        ArtefactError: a file has changed, is missing or was added; the message names it.
    """
    recorded = read_json(files, SELFTEST, where).get("files")
    if not isinstance(recorded, dict):
        raise ArtefactError(f"{where}: {SELFTEST} is damaged: it has no digests of the other files; fetch it again")
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != SELFTEST}
    for name in sorted(set(digests) | set(recorded)):
        if digests.get(name) != recorded.get(name):
            raise ArtefactError(
                f"{where}: {SELFTEST}: {name} is not the file that was written with this model; fetch it again"
            )


def verify_selftest(model: TrainedModel) -> None:
    """Repeat the self-test in a model's files.

    Raises:
        ArtefactError: the model's results differ; the message names the difference.
    """
    recorded, where = read_json(model.files, SELFTEST, model.where), f"{model.where}: {SELFTEST}"
    try:
        for key, value in (("schema_hash", model.features.schema_hash), ("pool_hash", model.pool.hash)):
            if recorded[key] != value:
                raise ArtefactError(f"{where}: {key} is {recorded[key]!r:.80}, the model has {value!r}")
        for i, expected in enumerate(recorded["problems"]):
            problem = OPS[model.target.op].from_dict(expected["problem"])
            _compare(expected, _observe(model, problem), model.features.names, f"{where}: problem {i}")
    except UsageError as e:
        raise e if isinstance(e, ArtefactError) else ArtefactError(f"{where}: {e}") from e
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as e:
        raise ArtefactError(f"{where} is damaged: {e!r:.200}") from e


def _compare(expected: JsonObject, observed: JsonObject, names: Sequence[str], where: str) -> None:
    remedy = "this library's formulas differ from those the model was trained with; train again"
    for kernel, row in observed["features"].items():
        if kernel not in expected["features"]:
            raise ArtefactError(f"{where}: {kernel} ranks among the best, but did not in training; {remedy}")
        close = np.isclose(row, expected["features"][kernel], rtol=FEATURE_TOLERANCE, atol=FEATURE_TOLERANCE)
        if not close.all():
            name = names[int(np.argmin(close))]
            raise ArtefactError(f"{where}: feature {name} of {kernel} differs; {remedy}")
    for key in ("scores", "tflops"):
        if not np.allclose(observed[key], expected[key], rtol=SCORE_TOLERANCE, atol=SCORE_TOLERANCE):
            raise ArtefactError(f"{where}: {key} differ; {remedy}")
    if observed["ranking"] != expected["ranking"]:
        raise ArtefactError(f"{where}: the ranking differs; {remedy}")
