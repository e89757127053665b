"""Train, register and promote, for processes that faults hit; and the checks afterwards."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from logged import log_training
from small_model import table
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.errors import TilewiseError
from tilewise.gate import SliceRule, Thresholds, parse_decision
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.registry import (
    ROLLED_BACK_TAG,
    find_by_number,
    gate_standing,
    list_aliases,
    list_versions,
    load_version,
    read_history,
    registry_session,
    roll_back,
    settle_history,
)
from tilewise.registry import _history as history
from tilewise.registry._versions import set_tag
from tilewise.registry.promotion import Override, PromotionRules, publish
from tilewise.registry.promotion import _promote as promotion
from tilewise.registry.promotion._logged_files import logged_decision
from tilewise.train import ModelSettings, TrainingResult, TrainSettings, TuneSettings, pool_of, train

_THRESHOLDS = Thresholds(
    mean_drop=100, median_drop=100, p10_drop=100, problem_drop=100, slices=SliceRule(n_resamples=50),
    selection_time_factor=1e9, min_problems=1,
)  # fmt: skip
RULES = PromotionRules(_THRESHOLDS, 0.18, override=Override("small tables of tests"))
REASON = "a campaign"  # of rollbacks
# Of a client that faults hit: giving up early makes schedules short. Its own limits are 30 s and three more attempts.
IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "3",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}


@cache
def trained(seed: int) -> TrainingResult:
    """Train a tiny model, once in a process and those that it forks."""
    target = Target.parse(CONV)
    settings = TrainSettings(ModelSettings(n_estimators=4, num_leaves=7), TuneSettings(n_trials=0), 2, seed, threads=1)
    return train(table(), target, pool_of(table(), target), load_arch(target.arch), settings)


def live(uri: str, folder: Path, seed: int) -> bool:
    """Write a model, register it, promote it; return whether it is in production."""
    write_artefact(folder / "model", trained(seed).parts)
    with registry_session(uri):
        publish(folder / "model", log_training(trained(seed), folder / "model"))
        return promoted(folder / "model", RULES, folder / "reports")


def promoted(model: Path, rules: PromotionRules, reports: Path) -> bool:
    """Promote a model, without plots, in the registry of the session; return whether it is in production."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    history.LEASE_S = 0.5  # the owner of an unfinished entry is known to be dead
    return promotion.promote(model, table(), rules, reports).in_production


def mark_rolled_back(uri: str, number: int) -> None:
    """Tag a version as an earlier rollback would have."""
    with registry_session(uri):
        set_tag(CONV, number, ROLLED_BACK_TAG, "an earlier time")


def go_back(uri: str, over: int, to: int) -> None:
    """Roll back from version `over` to another one, unless an interrupted attempt had done it.

    Raises:
        AssertionError: Version `over` still serves.
    """
    history.LEASE_S = 0.5
    with registry_session(uri):
        if settle_history(CONV).production == over:
            roll_back(CONV, to, reason=REASON, over=over)
        assert list_aliases(CONV)["production"] == to


def inspect_back(uri: str, over: int, to: int) -> list[str]:
    """Return everything wrong with the tags of a rollback, which has happened or not."""
    with registry_session(uri):
        last, serves = read_history(CONV)[-1].action, list_aliases(CONV).get("production")
        tags = {version.number: version.tags for version in list_versions(CONV)}
    wrong = []
    if serves == to and tags[over].get(ROLLED_BACK_TAG) != REASON:
        wrong.append("the version that was rolled back does not say so")
    if serves == to and ROLLED_BACK_TAG in tags[to]:
        wrong.append("the version that was restored is tagged as rolled back")
    if last != "rolled back" and ROLLED_BACK_TAG in tags[over]:
        wrong.append("production is tagged as rolled back, and was not")
    return wrong


def inspect_rollbacks(uri: str) -> list[str]:
    """Return the versions whose tag of a rollback differs from that which the history, replayed, would give."""
    with registry_session(uri):
        log, versions = read_history(CONV), list_versions(CONV)
    replaced: set[int | None] = set()
    for entry in log:
        if entry.action == "rolled back":
            replaced = (replaced | {entry.previous}) - {entry.production}
    if log and not log[-1].applied:  # the next process to decide writes the tags
        return []
    tagged = {version.number for version in versions if ROLLED_BACK_TAG in version.tags}
    return [] if tagged == replaced else [f"tagged as rolled back: {tagged}, by the history: {replaced}"]


def inspect(uri: str, folder: Path) -> list[str]:
    """Return everything wrong with the registry and the files beside it."""
    wrong = []
    with registry_session(uri):
        aliases, log = list_aliases(CONV), read_history(CONV)
        for alias, number in aliases.items():
            version = find_by_number(CONV, number)
            if version is None:
                wrong.append(f"{alias} names version {number}, which is missing")
                continue
            try:
                load_version(version)
            except TilewiseError as e:
                wrong.append(f"{alias} names {version}: {e}")
            settled = log and log[-1].applied
            if alias == "production" and settled and not gate_standing(version).passed:
                wrong.append(f"{version} serves: {gate_standing(version).reason}")
            decision = parse_decision(logged_decision(version)) if alias == "production" else None
            if alias == "production" and (decision is None or decision["outcome"] != "promoted"):
                wrong.append(f"{version} serves without a recorded decision")
        if log and log[-1].applied and aliases.get("production") != log[-1].production:
            wrong.append(f"the log says {log[-1]}, the aliases {aliases}")
        hashes = [v.content_hash for v in list_versions(CONV)]
        wrong += [f"published twice: {h}" for h in set(hashes) if hashes.count(h) > 1]
    if (folder / "model").exists():
        try:
            load_artefact(folder / "model")
        except TilewiseError as e:
            wrong.append(f"half a model on disk: {e}")
    return wrong


def half_copies(folder: Path) -> list[str]:
    """Return the local copies of dispatchers below `folder` that are not whole."""
    wrong = []
    for model in folder.glob("*/models/*/*/*/"):
        if not model.name.startswith(".") and len(model.name) == 64:
            try:
                load_artefact(model)
            except TilewiseError as e:
                wrong.append(f"half a local copy: {e}")
    return wrong
