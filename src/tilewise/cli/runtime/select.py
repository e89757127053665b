"""Select the kernel for one problem with the model in production, or with the one in a folder.

tilewise select 'problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1}' [target=NAME | input=FOLDER]

With input= the registry is not asked. A terminal gets a table, a pipe or output=FILE gets JSON. `why` names the source
of the decision: the model, a measurement, or the fallback (the pool's default kernel) if no model was promoted yet
(docs/dispatching.md). `trust` is the confidence: the possible loss, and the number of best ranked kernels to measure
(docs/trust.md).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.table import Table

from tilewise.cli._console import plain_console, write_document, write_result
from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.errors import ConfigError, UnknownTargetError
from tilewise.files import write_text
from tilewise.model import Confidence

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SHOWN = 5


def run(cfg: DictConfig) -> None:
    """Select the kernel for ``cfg.problem``.

    Raises:
        ConfigError: the problem is missing.
        UnknownTargetError: there is neither a model nor a shipped pool.
    """
    from omegaconf import OmegaConf

    if not cfg.problem:
        raise ConfigError(
            "problem: missing; give its dimensions, e.g. 'problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3}'"
        )
    problem = cast("dict[str, int | str]", OmegaConf.to_container(cfg.problem, resolve=True))
    # Closing writes the line of TILEWISE_RECORD.
    with _from_folder(cfg.input) if cfg.input else _dispatcher(cfg.target, cfg.tracking.uri) as dispatcher:
        best, ranked = dispatcher.select(problem), dispatcher.rank(problem, _SHOWN)
        confidence = dispatcher.confidence(problem)
        document = _document(dispatcher, problem, best, ranked, confidence)
    text = _to_json(document)
    if cfg.output:
        write_text(cfg.output, text)
        write_result(document, text)
    elif write_document(document, text):
        _show(dispatcher, best, ranked, confidence, plain_console())


def _from_folder(folder: str) -> Dispatcher:
    return Dispatcher.from_folder(folder, switches=Switches.read(shadow="off"))


def _dispatcher(target: str, uri: str | None) -> Dispatcher:
    """Return the dispatcher of the model in production, or one of the shipped pool if no model is in production."""
    try:
        return Dispatcher.from_registry(target, uri=uri, fallback=False, switches=Switches.read(shadow="off"))
    except UnknownTargetError as reason:
        try:
            dispatcher = Dispatcher.from_pool(target)
        except UnknownTargetError as no_pool:
            raise UnknownTargetError(f"{reason}; {no_pool}") from reason
        print(f"tilewise: no model, so the default kernel is taken: {reason}", file=sys.stderr)
        return dispatcher


def _document(
    dispatcher: Dispatcher,
    problem: dict[str, int | str],
    best: Selection,
    ranked: tuple[Selection, ...],
    confidence: Confidence | None,
) -> dict[str, object]:
    return {
        "target": dispatcher.target.name,
        "problem": problem,
        "kernel_name": best.kernel_name,
        "predicted_tflops": best.predicted_tflops,
        "why": best.why,
        "measured_ms": best.measured_ms,
        "trust": confidence.to_dict() if confidence else None,
        "kernel": asdict(best.kernel),
        "model_version": dispatcher.version,
        "content_hash": dispatcher.content_hash,
        "kernel_count": dispatcher.kernel_count,
        "ranking": [{"kernel_name": s.kernel_name, "predicted_tflops": s.predicted_tflops} for s in ranked],
    }


def _to_json(document: dict[str, object]) -> str:
    """Return JSON with one key per line, so that it is readable."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n"


def _show(
    dispatcher: Dispatcher,
    best: Selection,
    ranked: tuple[Selection, ...],
    confidence: Confidence | None,
    console: Console,
) -> None:
    source = f"model {dispatcher.content_hash[:12]}" if dispatcher.content_hash else "no model"
    if dispatcher.version is not None:
        source = f"@production, version {dispatcher.version}"
    title = f"{dispatcher.target.name} ({source}, {dispatcher.kernel_count} kernels), best first"
    console.print(title, soft_wrap=True, highlight=False)
    table = Table()
    table.add_column("kernel", overflow="fold")
    table.add_column("predicted TFLOPS", justify="right")
    table.add_column("why")
    for selection in ranked:
        tflops = "-" if selection.predicted_tflops is None else f"{selection.predicted_tflops:.1f}"
        table.add_row(selection.kernel_name, tflops, selection.why)
    console.print(table)
    if best.measured_ms is not None:
        known = f"measured on this machine: {best.kernel_name}, {1e3 * best.measured_ms:.1f} us"
        console.print(known, soft_wrap=True, highlight=False)
    if confidence:
        console.print(_in_words(confidence), soft_wrap=True, highlight=False)


def _in_words(confidence: Confidence) -> str:
    within = f"within {100 * confidence.tolerance:g} % of the best"
    depth = f"measure all: no few of the best ranked are sure to be {within}"
    if confidence.k is not None:
        depth = f"{within} {'by itself' if confidence.k == 1 else f'if the best {confidence.k} are measured'}"
    low, high = (100 * r for r in confidence.regret)
    return (
        f"{100 * confidence.level:g} % confidence: {low:.1f} to {high:.1f} % below the best; {depth}; "
        f"log2 distance to the nearest known shape {confidence.shape_distance:.2f}"
    )
