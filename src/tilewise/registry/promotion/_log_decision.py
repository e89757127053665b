"""The gate's decision in MLflow: figures, decision, page and plots on the candidate's run, tags on its version."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tilewise.evaluate import slice_names, sliced_metrics
from tilewise.gate import DECISION_FILE, DECISION_PAGE, decision_to_html, parse_decision
from tilewise.publish import slice_in_words, weakest_slices
from tilewise.registry._registered_models import describe_model
from tilewise.registry._tracking import translate_errors
from tilewise.registry._version_description import describe_version, model_page
from tilewise.registry._versions import DECISION_TAG, HOLDOUT_TAG, OVERRIDE_TAG, delete_tag, set_tag, write_description
from tilewise.registry.promotion._holdout_problems import COUNT_TAG, DIGEST_TAG, RATES_TAG
from tilewise.registry.promotion._judgement import Judgement
from tilewise.registry.promotion._logged_files import FOLDER, HOLDOUT_FILE, RECORD_TAG, text_digest
from tilewise.registry.promotion._publish import open_run
from tilewise.registry.training_runs import UsedData, log_dataset, log_model_figures

EXPLORER = "evaluation/explorer.html"


def log_decision(judgement: Judgement, text: str, experiment: str) -> tuple[str, bool]:
    """Log a decision once; logging it again changes nothing.

    Args:
        judgement: The judgement.
        text: The text of ``promotion.json``.
        experiment: The experiment for a new run, if the version has no run any more.

    Returns:
        The run's id, and whether the decision is new to it.

    Raises:
        RegistryUnavailableError: The registry does not answer any more.
    """
    import mlflow

    version, digest = judgement.version, text_digest(text)
    client = mlflow.MlflowClient()
    with translate_errors(f"the gate's decision on {version} cannot be logged"):
        run_id = open_run(version, experiment)
        if version.tags.get(RECORD_TAG) == digest:
            return run_id, False
        data = (version.target, judgement.holdout_hash)
        sizes = (len(judgement.ours.measured), judgement.gate.n_problems)
        log_dataset(run_id, UsedData(*data, "holdout", judgement.model.pool, *sizes))
        log_model_figures(run_id, version.model_id, data, _figures(judgement))
        client.set_tag(run_id, DECISION_TAG, judgement.outcome)
        client.log_text(run_id, text, f"{FOLDER}/{DECISION_FILE}")
        client.log_text(run_id, decision_to_html(parse_decision(text) or {}), f"{FOLDER}/{DECISION_PAGE}")
        if judgement.outcome == "promoted":  # the holdout of a refusal does not count
            client.log_text(run_id, judgement.holdout.dumps(), f"{FOLDER}/{HOLDOUT_FILE}")
    _describe(judgement, text)
    set_tag(version.target, version.number, RECORD_TAG, digest)  # last: the log is complete with it
    return run_id, True


def _describe(judgement: Judgement, text: str) -> None:
    """Write the page of the registered model, the version's, and the tags with the decision."""
    version = judgement.version
    describe_model(version.target, *model_page(judgement.model))
    weak = weakest_slices(
        sliced_metrics(judgement.both, slice_names(judgement.ours.target.op, judgement.both)),
        judgement.gate.thresholds.slices.min_problems,
    )
    origins = judgement.ours.per_problem["origin"].unique().tolist()
    page = describe_version(judgement.model, parse_decision(text), [slice_in_words(s) for s in weak], origins)
    write_description(version.target, version.number, page)
    summary = f"{judgement.outcome}: {'; '.join(judgement.reasons)}"[:1000]
    set_tag(version.target, version.number, DECISION_TAG, summary)
    set_tag(version.target, version.number, HOLDOUT_TAG, judgement.holdout_hash)
    if judgement.outcome == "promoted":
        set_tag(version.target, version.number, DIGEST_TAG, judgement.holdout.digest)
        set_tag(version.target, version.number, COUNT_TAG, str(len(judgement.holdout.kernels)))
        set_tag(version.target, version.number, RATES_TAG, text_digest(judgement.holdout.dumps()))
    if judgement.override is None:
        delete_tag(version, OVERRIDE_TAG)
    else:
        set_tag(version.target, version.number, OVERRIDE_TAG, judgement.override)


def log_plots(judgement: Judgement, run_id: str, explorer: Callable[[], str]) -> None:
    """Draw and log the plots of a decision, and the explorer of the candidate's holdout.

    That takes seconds, so it waits until the decision is final.

    Args:
        judgement: The judgement.
        run_id: The run of the candidate.
        explorer: Returns the explorer's page.

    Raises:
        RegistryUnavailableError: The registry does not answer any more.
    """
    import mlflow

    from tilewise.evaluate import write_plots
    from tilewise.registry.promotion._decision_plots import write_comparison

    action = f"the plots of {judgement.version} cannot be logged"
    with translate_errors(action), tempfile.TemporaryDirectory() as scratch:
        client = mlflow.MlflowClient()
        for plot in write_plots(Path(scratch), judgement.ours):
            client.log_artifact(run_id, str(plot), "plots/holdout")
        for plot in write_comparison(Path(scratch) / "against_production", judgement):
            client.log_artifact(run_id, str(plot), "plots/against_production")
        client.log_text(run_id, explorer(), EXPLORER)


def _figures(judgement: Judgement) -> dict[str, float]:
    """Return the metrics. The selection time is only here, since decisions must not vary between runs."""
    figures = {f"gate/{c.name}_change_points": c.change_points for c in judgement.gate.checks}
    figures |= {f"holdout/{k}": float(v) for k, v in judgement.ours.metrics.items()}
    if judgement.selection_time_ratio is not None:
        figures["gate/selection_time_ratio"] = judgement.selection_time_ratio
    figures["gate/refusing_slices"] = len(judgement.gate.weak_slices)
    return figures
