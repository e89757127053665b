"""Check a trained model on the hardware: build and run the kernels that it selects.

tilewise validate mode=training_shapes    run the oracle's and the model's kernel on problems of the training set
tilewise validate mode=oracle             run the whole pool on unseen problems: is the selected kernel the fastest?
tilewise validate mode=backward [problems=FILE]
                                          print predictions of the gradients' models for seven layers of known networks:
                                          the best three kernels, pipelines, the gap to the second; no GPU, seconds
tilewise validate mode=trace plan.requests=FILE [a=MODEL] [data=...]
                                          GPU minutes of recorded calls by the measurements, and the minutes saved
                                          since model a (a folder, or models:/TARGET@ALIAS)

The first two modes report the aims of conf/gate (gate.aims), which refuse nothing. They measure on this machine's GPU;
kernels in libraries need collect.libraries or its variable. collect.plan=FILE writes the plan instead, for
`python -m tilewise.collect PLAN TABLE` on a machine with nothing but torch and triton; input=TABLE then reports on its
table. collect.simulate=DATA looks measurements up. The report, Markdown and JSON, goes to out= (default:
reports/<target>).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from tilewise.campaigns.validate import (
    REPRESENTATIVE_LAYERS,
    Aims,
    ShapePlanOptions,
    ValidationReport,
    backward_report,
    judge_measurements,
    judge_trace,
    plan_training_shapes,
    plan_unseen_shapes,
    predict_layer,
    predict_problems,
    validation_page,
    write_validation_report,
)
from tilewise.checks import is_whole, require
from tilewise.cli._console import plain_console, write_result
from tilewise.cli.measuring.collect import devices_of, plan_from_config
from tilewise.cli.models.compare import load_model
from tilewise.cli.runtime.problem_rows import read_problems
from tilewise.collect import CollectLimits, CollectTask, Plan, ProgressLine, collect_plan, collect_with_engine
from tilewise.collect.engines import ReplayTable, replay_engine
from tilewise.data import read_measurements
from tilewise.dispatch.logs import count_requests
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import OPS, Problem, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

MODES = ("training_shapes", "backward", "oracle", "trace")
GRADIENTS = ("bwd_data", "bwd_weight")


def run(cfg: DictConfig) -> None:
    """Validate ``cfg.model_dir``.

    Raises:
        ArtefactError: a model cannot be loaded.
        ConfigError: the mode is unknown, or does not exist for this op.
        DataError: the table has no problem to measure or to judge.
        MeasurementError: this machine has no GPU.
    """
    if cfg.mode not in MODES:
        raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {cfg.mode}")
    count = cfg.validate.problems
    require("validate.problems must be a whole number of at least 1", is_whole(count) and count >= 1, count)
    console = plain_console()
    without_gpu = {"backward": _backward, "trace": _trace}
    report = without_gpu[cfg.mode](cfg) if cfg.mode in without_gpu else _measured(cfg, console)
    if report is None:
        return
    folder = Path(cfg.out or cfg.reports)
    write_validation_report(folder, report)
    console.print(validation_page(report), soft_wrap=True, highlight=False)
    console.print(f"report: {folder}/validate_{cfg.mode}.md", soft_wrap=True, highlight=False)
    write_result(report)


def _backward(cfg: DictConfig) -> ValidationReport:
    """Predict with the gradients' models, which lie beside that of model_dir."""
    target = Target.parse(cfg.target)
    if target.op != "grouped_conv":
        raise ConfigError(f"mode=backward needs an op with gradient variants (grouped_conv), got {target.op}")
    layers: Mapping[str, Problem] = REPRESENTATIVE_LAYERS
    if cfg.problems:
        layers = {OPS[target.op].in_words(p.to_dict()): p for p in read_problems(Path(cfg.problems), target)}
    models = Path(cfg.model_dir).parent
    names = [Target(target.op, variant, target.dtype, target.arch).name for variant in GRADIENTS]
    missing = [name for name in names if not (models / name).is_dir()]
    if missing:
        raise ConfigError(
            f"mode=backward asks the models of {' and '.join(GRADIENTS)}, but {models} has no {' or '.join(missing)}: "
            "train them on measurements of these targets, or give another model_dir"
        )
    loaded = [load_artefact(models / name) for name in names]
    return backward_report(
        [predict_problems(model, list(layers.values())) for model in loaded],
        [[predict_layer(model, name, problem) for name, problem in layers.items()] for model in loaded],
    )


def _trace(cfg: DictConfig) -> ValidationReport:
    if not cfg.plan.requests:
        raise ConfigError("plan.requests: missing; name the file that TILEWISE_RECORD named")
    model = load_model(str(cfg.model_dir), cfg.tracking.uri)
    before = load_model(str(cfg.a), cfg.tracking.uri) if cfg.a else None
    calls = count_requests(cfg.plan.requests, model.target)
    return judge_trace(calls, read_measurements(Path(cfg.data), model.target), model, before)


def _measured(cfg: DictConfig, console: Console) -> ValidationReport | None:
    """Measure or read the table and judge it; return None if only the plan was requested."""
    model, aims = load_artefact(cfg.model_dir), Aims(**cfg.gate.aims)
    if cfg.input:
        return judge_measurements(cfg.mode, read_measurements(Path(cfg.input), model.target), model, aims)
    plan = _plan(cfg, model)
    if cfg.collect.plan:
        write_text(Path(cfg.collect.plan), plan.dumps())
        console.print(f"plan: {cfg.collect.plan}", soft_wrap=True, highlight=False)
        write_result({"plan": str(cfg.collect.plan), "problems": len(plan.items)})
        return None
    return judge_measurements(cfg.mode, _collect(cfg, plan), model, aims)


def _plan(cfg: DictConfig, model: TrainedModel) -> Plan:
    whole = plan_from_config(cfg, model.pool)  # no pool is shipped for targets whose kernels come in libraries
    options = ShapePlanOptions(cfg.validate.problems, whole.timing, f"validate-{cfg.mode}", cfg.seed)
    source = Path(cfg.collect.simulate or cfg.data)
    if cfg.mode == "training_shapes":
        frame = read_measurements(source, model.target)
        return plan_training_shapes(frame, model, options)
    if cfg.collect.simulate:  # only recorded problems can be looked up, and only their holdout is unseen
        items = ReplayTable.load(source, model.target).plan(options.run_id, whole.timing, model.arch).items
        return plan_unseen_shapes(items, None, model, options)
    frame = read_measurements(source, model.target)
    return plan_unseen_shapes(whole.items, frame, model, options)


def _collect(cfg: DictConfig, plan: Plan) -> pd.DataFrame:
    """Measure a plan and return the table, which is written beside the report."""
    output = Path(cfg.output or f"{cfg.out or cfg.reports}/validate_{cfg.mode}.parquet")
    settings = cfg.collect
    if settings.simulate:
        engine = replay_engine(settings.simulate)
        report = collect_with_engine(plan, output, engine, [0], ProgressLine(), CollectLimits())
    else:
        means = (settings.jobs or None, settings.libraries, settings.memory)
        report = collect_plan(CollectTask(plan, output, devices_of(settings.devices), CollectLimits(), *means))
    report.require_complete()
    return read_measurements(output, plan.target)
