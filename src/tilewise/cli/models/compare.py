"""Compare two models on the same problems: agreement, gains, losses and their confidence intervals.

tilewise compare a=MODEL b=MODEL [data=FILE_OR_FOLDER] [output=FILE.json] [compare.threshold=1.0]
tilewise compare a=PREDICTIONS b=PREDICTIONS [data=FILE_OR_FOLDER] [target=NAME]      without the models

PREDICTIONS are the files (.csv, .parquet) of `tilewise evaluate output=FILE`; or of `tilewise select problems=FILE
output=FILE.csv`, which data= judges: measurements, or a benchmark file of CK Tile's.

A MODEL is a model's folder, or one of the registry: models:/TARGET@ALIAS, models:/TARGET/VERSION. Differences are
b - a: give the present model as a. Both are judged on the holdout (holdout.fraction; 0: on every problem of the table),
which neither may have been trained on. See docs/evaluation.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.cli._figures import notes
from tilewise.cli.models.evaluate import read_table
from tilewise.errors import ConfigError, UnknownTargetError
from tilewise.evaluate import (
    CompareSettings,
    Comparison,
    Interval,
    compare_models,
    compare_predictions,
    is_predictions,
    read_predictions,
    with_efficiency,
)
from tilewise.files import write_text
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import OPS, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

_REGISTERED = re.compile(r"models:/(?P<target>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<number>\d+))")
_NAMES = {"mean": "mean", "median": "median", "p10": "P10", "worst": "worst problem"}
_SHOWN_MOVES = 5


def run(cfg: DictConfig) -> None:
    """Compare ``cfg.a`` with ``cfg.b`` on ``cfg.data``.

    Raises:
        ArtefactError: a model cannot be loaded.
        ConfigError: a model is not given, the output's name is of another format, or the models have different targets.
        DataError: the table cannot be used.
        UnknownTargetError: the registry has no such model.
        RegistryUnavailableError: the registry is needed and does not answer.
    """
    if not (cfg.a and cfg.b):
        raise ConfigError("a and b: both models are needed, e.g. a=models:/TARGET@production b=models/TARGET")
    if cfg.output:
        require_format(cfg.output, ".json")
    settings = CompareSettings(
        threshold_points=float(cfg.compare.threshold),
        level=float(cfg.compare.level),
        n_resamples=int(cfg.compare.n_resamples),
        seed=int(cfg.seed),
    )
    found = (_compare_files if is_predictions(cfg.a) or is_predictions(cfg.b) else _compare_models)(cfg, settings)
    document = _plain(found, {"a": {"model": str(cfg.a)}, "b": {"model": str(cfg.b)}})
    if cfg.output:
        write_text(Path(cfg.output), json.dumps(document, indent=1) + "\n")
    write_result(document)
    _show(plain_console(), found, str(cfg.a), str(cfg.b), Target.parse(found.target))


def _compare_models(cfg: DictConfig, settings: CompareSettings) -> Comparison:
    a, b = (load_model(str(where), cfg.tracking.uri) for where in (cfg.a, cfg.b))
    frame = read_table(Path(cfg.data), a.target, plain_console())
    return compare_models(a, b, frame, float(cfg.holdout.fraction), settings)


def _compare_files(cfg: DictConfig, settings: CompareSettings) -> Comparison:
    if not (is_predictions(cfg.a) and is_predictions(cfg.b)):
        raise ConfigError("a and b: give two models, or two files of predictions (.csv, .parquet)")
    files = [read_predictions(Path(where), Target.parse(cfg.target)) for where in (cfg.a, cfg.b)]
    if any("efficiency" not in file.per_problem for file in files):
        frame = read_table(Path(cfg.data), files[0].target, plain_console())
        files = [with_efficiency(file, frame) for file in files]
    return compare_predictions(files[0], files[1], settings)


def load_model(where: str, uri: str | None) -> TrainedModel:
    """Load a model from a folder, or models:/TARGET@ALIAS or models:/TARGET/VERSION of the registry at `uri`.

    Raises:
        ArtefactError: the model cannot be loaded.
        ConfigError: the name has another form.
        UnknownTargetError: the registry has no such model.
        RegistryUnavailableError: the registry does not answer.
    """
    if not where.startswith("models:/"):
        return load_artefact(where)
    named = _REGISTERED.fullmatch(where)
    if named is None:
        raise ConfigError(
            f"{where!r} is not the name of a registered model; expected models:/TARGET@ALIAS or models:/TARGET/VERSION"
        )
    from tilewise.registry import (
        connect,
        find_by_number,
        hide_password,
        is_missing_store,
        list_aliases,
        load_version,
        resolve_tracking_uri,
    )

    resolved = resolve_tracking_uri(uri)
    if is_missing_store(resolved):
        raise UnknownTargetError(f"{where}: no model is registered at {hide_password(resolved)} yet")
    connect(uri)
    target = named["target"]
    number = int(named["number"]) if named["number"] else list_aliases(target).get(named["alias"])
    version = None if number is None else find_by_number(target, number)
    if version is None:
        raise UnknownTargetError(
            f"{where}: the registry at {hide_password(resolved)} has no such version; `tilewise registry` lists all"
        )
    return load_version(version)


def _plain(found: Comparison, named: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    """Return plain data for JSON, with the models as the caller named them.

    A registered model was loaded from a temporary folder, so its `where` means nothing.
    """
    values = found.to_dict()
    for side, extra in named.items():
        values[side] = {**extra, **{k: v for k, v in values[side].items() if k != "where"}}
    return values


def _show(console: Console, found: Comparison, a: str, b: str, target: Target) -> None:
    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    say(f"{found.target}, {found.n_problems} problems")
    say(f"a: {a} ({found.a.content_hash[:12]})")
    say(f"b: {b} ({found.b.content_hash[:12]})")
    console.print(_deltas(found))
    say(f"same kernel: {found.same_kernel:.1%}; same within noise: {found.same_within_noise:.1%}")
    say(
        f"improved {found.n_improved}, same {found.n_same}, degraded {found.n_degraded} "
        f"(a move of more than {found.threshold_points:g} points)"
    )
    if found.slices:
        console.print(_slices(found))
    for title, moves in (("largest regressions:", found.regressions), ("largest improvements:", found.improvements)):
        if moves:
            say(title)
        for line in _moves(target, moves[:_SHOWN_MOVES]):
            say(line)
    sizes = dict.fromkeys((found.a.pool_size, found.b.pool_size))
    for note in notes(f"pools of {' and '.join(map(str, sizes))} kernels", found.split_rule, found.noise_ceiling):
        say(note)
    resampling = f"{found.n_resamples} resamples, seed {found.seed}"
    say(f"intervals: {found.level:.0%}, paired bootstrap over problems, {resampling}")
    for side, count in (("a", found.n_only_a), ("b", found.n_only_b)):
        if count:
            say(f"note: {count} problems are left out, for which only {side}'s pool has a valid kernel")
    for note in found.notes:
        say(f"note: {note}")


def _deltas(found: Comparison) -> Table:
    table = Table("efficiency")
    for heading in ("a", "b", "b - a, points", f"{found.level:.0%} interval"):
        table.add_column(heading, justify="right")
    table.add_column("b is")
    for name, delta in found.deltas.items():
        figures = (f"{100 * side.efficiency[name]:.2f} %" for side in (found.a, found.b))
        table.add_row(_NAMES[name], *figures, f"{100 * delta.delta:+.2f}", _interval(delta), delta.verdict)
    return table


def _slices(found: Comparison) -> Table:
    table = Table("slice", "")
    for heading in ("problems", "mean a", "mean b", "b - a", "interval", "P10, b - a", "up", "down"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("b is")
    last = ""
    for row in found.slices:
        if last and row.slice != last:
            table.add_section()
        label, last = "" if row.slice == last else row.slice, row.slice
        mean = row.deltas["mean"]
        table.add_row(
            label,
            row.value,
            str(row.n_problems),
            *(f"{100 * e:.2f} %" for e in (row.mean_a, row.mean_b)),
            f"{100 * mean.delta:+.2f}",
            _interval(mean),
            f"{100 * row.deltas['p10'].delta:+.2f}",
            str(row.n_improved),
            str(row.n_degraded),
            mean.verdict if mean.verdict != "unclear" else "",
        )
    return table


def _interval(delta: Interval) -> str:
    return f"{100 * delta.low:+.2f} .. {100 * delta.high:+.2f}"


def _moves(target: Target, moves: Sequence[Mapping[str, Any]]) -> list[str]:
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    lines = []
    for row in moves:
        kernels = [str(row[n]).removeprefix(prefix) for n in ("selected_a", "selected_b", "oracle")]
        change = f"{100 * row['efficiency_a']:6.2f} % -> {100 * row['efficiency_b']:6.2f} %"
        lines.append(f"  {change}  {OPS[target.op].in_words(row['problem'])}")
        lines.append(f"            a {kernels[0]}, b {kernels[1]}, oracle {kernels[2]}")
    return lines
