"""Check a trained model on the hardware: build and run what it selects.

tilewise validate mode=training_shapes    the oracle's and the model's kernel of problems that it was trained on
tilewise validate mode=oracle             unseen problems with the whole pool: is what it selects the fastest?
tilewise validate mode=backward           predictions of the gradients' models alone; no GPU, a few seconds
tilewise validate mode=trace plan.requests=FILE [a=MODEL] [data=...]
                                          GPU minutes that recorded calls take, by what was measured, and what is saved
                                          since model a (a folder, or models:/TARGET@ALIAS)

The first two measure on this machine's GPU. collect.plan=FILE writes the plan instead, for `python -m tilewise.collect
PLAN TABLE` on a machine with nothing but torch and triton, and input=TABLE reports on its table. collect.simulate=DATA
looks measurements up. The report, Markdown and JSON, goes to out= (default: reports/<target>).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from tilewise.checks import is_whole, require
from tilewise.cli.collect import devices_of, plan_from_config
from tilewise.cli.compare import load_model
from tilewise.collect.plan import Plan
from tilewise.collect.problems import problem_set
from tilewise.collect.progress import ProgressLine
from tilewise.collect.recorded import RecordedMeasurements, recorded_engine
from tilewise.collect.run import Limits, collect, collect_on_gpus
from tilewise.data.schema import read_measurements
from tilewise.dispatch.record import calls_of
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.model.artefact import load_artefact
from tilewise.model.trained import TrainedModel
from tilewise.ops import Target
from tilewise.validate.backward import predictions
from tilewise.validate.plans import training_shapes, unseen_shapes
from tilewise.validate.report import Report, judge, page, predicted, write_report
from tilewise.validate.trace import judge_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

MODES = ("training_shapes", "backward", "oracle", "trace")
GRADIENTS = ("bwd_data", "bwd_weight")


def run(cfg: DictConfig) -> None:
    """Validate ``cfg.model_dir``.

    Raises:
        ArtefactError: a model cannot be loaded.
        ConfigError: there is no such mode, or not for this op.
        DataError: there is nothing to measure or to judge by.
        MeasurementError: there is no GPU here.
    """
    if cfg.mode not in MODES:
        raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {cfg.mode}")
    count = cfg.validate.problems
    require("validate.problems must be a whole number of at least 1", is_whole(count) and count >= 1, count)
    console = Console()
    apart = {"backward": _backward, "trace": _trace}
    report = apart[cfg.mode](cfg) if cfg.mode in apart else _measured(cfg, console)
    if report is None:
        return
    folder = Path(cfg.out or cfg.reports)
    write_report(folder, report)
    console.print(page(report), soft_wrap=True, highlight=False, markup=False)
    console.print(f"report: {folder}/validate_{cfg.mode}.md", soft_wrap=True, highlight=False)


def _backward(cfg: DictConfig) -> Report:
    """The gradients' models stand beside that of model_dir."""
    target = Target.parse(cfg.target)
    if target.op != "grouped_conv":
        raise ConfigError(f"mode=backward is for grouped_conv, whose variants are gradients; {target.op} has none")
    problems = [item.problem for item in problem_set(target.op, cfg.collect.problems)[: cfg.validate.problems]]
    beside = Path(cfg.model_dir).parent
    names = [Target(target.op, variant, target.dtype, target.arch).name for variant in GRADIENTS]
    return predicted([predictions(load_artefact(beside / name), problems) for name in names])


def _trace(cfg: DictConfig) -> Report:
    if not cfg.plan.requests:
        raise ConfigError("plan.requests: missing; name the file that TILEWISE_RECORD named")
    model = load_model(str(cfg.model_dir), cfg.tracking.uri)
    before = load_model(str(cfg.a), cfg.tracking.uri) if cfg.a else None
    calls = calls_of(cfg.plan.requests, model.target)
    return judge_trace(calls, read_measurements(Path(cfg.data), model.target), model, before)


def _measured(cfg: DictConfig, console: Console) -> Report | None:
    """None where only the plan was wanted."""
    model = load_artefact(cfg.model_dir)
    if cfg.input:
        return judge(cfg.mode, read_measurements(Path(cfg.input), model.target), model)
    plan = _plan(cfg, model)
    if cfg.collect.plan:
        write_text(Path(cfg.collect.plan), plan.dumps())
        console.print(f"plan: {cfg.collect.plan}", soft_wrap=True, highlight=False)
        return None
    return judge(cfg.mode, _collect(cfg, plan), model)


def _plan(cfg: DictConfig, model: TrainedModel) -> Plan:
    whole = plan_from_config(cfg)
    run_id, count = f"validate-{cfg.mode}", cfg.validate.problems
    source = Path(cfg.collect.simulate or cfg.data)
    if cfg.mode == "training_shapes":
        frame = read_measurements(source, model.target)
        return training_shapes(frame, model, count, whole.timing, run_id, cfg.seed)
    if cfg.collect.simulate:  # what was recorded is what can be looked up; its holdout was not seen
        items = RecordedMeasurements.load(source, model.target).plan(run_id, whole.timing, model.arch).items
        return unseen_shapes(items, None, model, count, whole.timing, run_id, cfg.seed)
    frame = read_measurements(source, model.target)
    return unseen_shapes(whole.items, frame, model, count, whole.timing, run_id, cfg.seed)


def _collect(cfg: DictConfig, plan: Plan) -> pd.DataFrame:
    """The table of a plan: measured, and kept beside the report."""
    output = Path(cfg.output or f"{cfg.out or cfg.reports}/validate_{cfg.mode}.parquet")
    if cfg.collect.simulate:
        engine = recorded_engine(cfg.collect.simulate)
        report = collect(plan, output, engine, [0], ProgressLine(), Limits())
    else:
        devices = devices_of(cfg.collect.devices)
        report = collect_on_gpus(plan, output, devices, cfg.collect.jobs or None, ProgressLine(), Limits())
    report.require_complete()
    return read_measurements(output, plan.target)
