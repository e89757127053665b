"""Tell why a kernel is selected, or was: the ranking, and the features that set the winner apart from the next.

tilewise explain problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1} [target=NAME]
tilewise explain input=JOURNAL [problem={...}]     replay a line that TILEWISE_JOURNAL wrote, the last (of that problem)

Needs no GPU and measures nothing. The model of a journal's line is looked for by its content hash in model_dir, among
the local copies and in the registry. A terminal gets tables, a pipe or output=FILE gets JSON.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tilewise.dispatch import Dispatcher, Switches, journal
from tilewise.dispatch.explain import agrees, model_of
from tilewise.dispatch.origin import pool_without_model
from tilewise.errors import ConfigError, DataError
from tilewise.files import write_text
from tilewise.ops import OPS, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Explain ``cfg.problem``, or a line of the journal ``cfg.input``.

    Raises:
        ConfigError: neither is given.
        DataError: the journal cannot be used, or the model of the line is nowhere.
    """
    from omegaconf import OmegaConf

    problem = OmegaConf.to_container(cfg.problem, resolve=True) if cfg.problem else None
    switches = Switches.read(measure="off", journal="", record="", shadow="off")
    if cfg.input:
        told = _replay(_line(cfg.input, problem), cfg, switches)
    elif problem:
        told = Dispatcher.from_registry(cfg.target, uri=cfg.tracking.uri, switches=switches).explain(problem)  # type: ignore[arg-type]
    else:
        raise ConfigError("problem: missing; give its dimensions, or input= a journal")
    text = json.dumps(told, indent=1) + "\n"
    if cfg.output:
        write_text(cfg.output, text)
    elif sys.stdout.isatty():
        show(told, Console())
    else:
        sys.stdout.write(text)


def _line(path: str, problem: Any) -> dict[str, Any]:
    """The last line, or the last about a problem."""
    lines = journal.read(path)
    for line in reversed(lines):
        op = OPS[Target.parse(line["target"]).op]
        if problem is None or line["problem"] == op.from_dict(problem).to_dict():
            return dict(line)
    raise DataError(f"{path}: none of its {len(lines)} decisions is about this problem")


def _replay(line: dict[str, Any], cfg: DictConfig, switches: Switches) -> dict[str, Any]:
    target = Target.parse(line["target"])
    model = model_of(line, cfg.model_dir, cfg.tracking.uri)
    chosen = (target, model.pool) if model else pool_without_model(target)
    with Dispatcher(*chosen, model, line["model_version"], switches=switches) as dispatcher:
        told = dispatcher.explain(line["problem"])
    return {**told, "recorded": line, "agrees": agrees(line, told)}


def show(told: dict[str, Any], console: Console) -> None:
    """Print an explanation."""
    decided = told.get("recorded", told)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    model = "no model" if told["content_hash"] is None else f"model {told['content_hash'][:12]}"
    version = "" if told["model_version"] is None else f" (version {told['model_version']})"
    sizes = OPS[Target.parse(told["target"]).op].in_words(told["problem"])
    say(f"{told['target']}, {model}{version}: {sizes}")
    say(f"{decided['kernel_name']}, by {decided['why']}" + (f": {decided['cause']}" if decided["cause"] else ""))
    if "recorded" in told:
        say(f"decided {decided['time']} in {1e6 * decided['seconds']:.0f} us; " + _agreement(told["agrees"]))
    table = Table(
        "", "kernel_name", "predicted TFLOPS", title=f"best of {told['supported']} kernels", title_justify="left"
    )
    for place, (name, tflops) in enumerate(told["ranking"], 1):
        table.add_row(str(place), name, "-" if tflops is None else f"{tflops:.1f}")
    console.print(table)
    if told["features"]:
        table = Table(
            "feature", "first", "second", "TFLOPS", title="why the first, not the second", title_justify="left"
        )
        for row in told["features"]:
            table.add_row(row["feature"], f"{row['winner']:.4g}", f"{row['runner_up']:.4g}", f"{row['percent']:+.2f} %")
        console.print(table)


def _agreement(same: bool) -> str:
    return "the model ranks alike now" if same else "the model ranks otherwise now: other switches, or another library"
