"""Explain why a kernel is or was selected: the ranking, and the features that distinguish the first from the second.

tilewise explain 'problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1}' [target=NAME]
tilewise explain input=JOURNAL ['problem={...}']     replay a line of TILEWISE_JOURNAL, the last (about that problem)
tilewise explain html=FILE ...                       write one self-contained page instead; works offline

Needs no GPU and measures nothing. The model of a journal's line is found by its content hash in model_dir, among the
local copies and in the registry. A terminal gets tables, a pipe or output=FILE gets JSON. The page shows measured
TFLOPS and the nearest measured shapes where data= has measurements of the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.table import Table

from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_document, write_result
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.logs import DecisionLine, find_deciding_model, read_decision_log, same_ranking
from tilewise.dispatch.sources import pool_without_model
from tilewise.errors import ConfigError, DataError
from tilewise.files import write_text
from tilewise.ops import OPS, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Explain ``cfg.problem``, or a line of the journal ``cfg.input``.

    Raises:
        ConfigError: neither is given.
        DataError: the journal cannot be used, or the model of its line is not found.
    """
    from omegaconf import OmegaConf

    problem = cast("dict[str, int | str]", OmegaConf.to_container(cfg.problem, resolve=True)) if cfg.problem else None
    switches = Switches.read(measure="off", journal="", record="", shadow="off")
    if cfg.html:
        require_format(Path(cfg.html), ".html")
    line = _line(cfg.input, problem) if cfg.input else None
    if line is not None:
        dispatcher, explained = _deciding(line, cfg, switches), line["problem"]
    elif problem:
        dispatcher, explained = Dispatcher.from_registry(cfg.target, uri=cfg.tracking.uri, switches=switches), problem
    else:
        raise ConfigError("problem: missing; give 'problem={...}', or input= with a journal")
    with dispatcher:
        now = dispatcher.explain(explained)
        explanation: dict[str, object] = {**now}
        if line is not None:
            explanation |= {"recorded": line, "agrees": same_ranking(line, now)}
        page = _page(dispatcher, explanation, Path(cfg.data)) if cfg.html else ""
    text = json.dumps(explanation, indent=1) + "\n"
    if cfg.html:
        write_text(cfg.html, page)
        write_result({"html": cfg.html})
        plain_console().print(f"page: {cfg.html}", soft_wrap=True, highlight=False)
    elif cfg.output:
        write_text(cfg.output, text)
        write_result(explanation, text)
    elif write_document(explanation, text):
        show(explanation, plain_console())


def _line(path: str, problem: Mapping[str, int | str] | None) -> DecisionLine:
    """Return the last line, or the last about a problem."""
    lines = read_decision_log(path)
    for line in reversed(lines):
        if problem is None or line["problem"] == Target.parse(line["target"]).problem(problem).stated():
            return line
    raise DataError(f"{path}: none of its {len(lines)} decisions is about this problem; omit problem= for the last one")


def _deciding(line: DecisionLine, cfg: DictConfig, switches: Switches) -> Dispatcher:
    """Return a dispatcher with the model of a recorded decision."""
    target = Target.parse(line["target"])
    model = find_deciding_model(line, cfg.model_dir, cfg.tracking.uri)
    pool = model.pool if model else pool_without_model(target)
    return Dispatcher(target, pool, model, line["model_version"], switches=switches)


def _page(dispatcher: Dispatcher, explanation: Mapping[str, Any], data: Path) -> str:
    """Return the HTML page of an explanation."""
    from tilewise.cli.runtime.explanation_page import page  # only needed for pages
    from tilewise.cli.runtime.page_facts import page_facts

    problem = dispatcher.target.problem(explanation["problem"])
    return page(explanation, page_facts(dispatcher, problem, data))


def show(explanation: Mapping[str, Any], console: Console) -> None:
    """Print an explanation."""
    decided = explanation.get("recorded", explanation)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    model = "no model" if explanation["content_hash"] is None else f"model {explanation['content_hash'][:12]}"
    version = "" if explanation["model_version"] is None else f" (version {explanation['model_version']})"
    sizes = OPS[Target.parse(explanation["target"]).op].in_words(explanation["problem"])
    say(f"{explanation['target']}, {model}{version}: {sizes}")
    say(f"{decided['kernel_name']}, by {decided['why']}" + (f": {decided['cause']}" if decided["cause"] else ""))
    if "recorded" in explanation:
        say(f"decided {decided['time']} in {1e6 * decided['seconds']:.0f} us; " + _agreement(explanation["agrees"]))
    table = Table(
        "", "kernel_name", "predicted TFLOPS", title=f"best of {explanation['supported']} kernels", title_justify="left"
    )
    for place, (name, tflops) in enumerate(explanation["ranking"], 1):
        table.add_row(str(place), name, "-" if tflops is None else f"{tflops:.1f}")
    console.print(table)
    if explanation["features"]:
        table = Table(
            "feature", "first", "second", "TFLOPS", title="why the first, not the second", title_justify="left"
        )
        for row in explanation["features"]:
            table.add_row(row["feature"], f"{row['winner']:.4g}", f"{row['runner_up']:.4g}", f"{row['percent']:+.2f} %")
        console.print(table)


def _agreement(same: bool) -> str:
    return (
        "the model ranks alike now" if same else "the model ranks differently now: other switches, or another library"
    )
