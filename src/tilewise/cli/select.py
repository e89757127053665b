"""Pick the kernel for one problem, by the model in production.

tilewise select problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1} [target=NAME]

A terminal gets a table, a pipe or output=FILE gets JSON. `why` says who decided: the model, a measurement, or the
fallback (the pool's default kernel) where no model was promoted yet (docs/dispatching.md). `trust` says how much the
selection may lose, and how many of the best ranked to measure (docs/trust.md).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.errors import ConfigError, UnknownTargetError
from tilewise.files import write_text
from tilewise.model.trust import Trust

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SHOWN = 5


def run(cfg: DictConfig) -> None:
    """Select for ``cfg.problem``."""
    from omegaconf import OmegaConf

    if not cfg.problem:
        raise ConfigError(
            "problem: missing; give its dimensions, e.g. problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3}"
        )
    problem: dict[str, Any] = dict(OmegaConf.to_container(cfg.problem, resolve=True))  # type: ignore[arg-type]
    dispatcher = _dispatcher(cfg.target, cfg.tracking.uri)
    best, ranked = dispatcher.select(problem), dispatcher.rank(problem, _SHOWN)
    trust = dispatcher.trust(problem)
    text = _to_json(_document(dispatcher, problem, best, ranked, trust))
    if cfg.output:
        write_text(cfg.output, text)
    elif sys.stdout.isatty():
        _show(dispatcher, best, ranked, trust, Console())
    else:
        sys.stdout.write(text)


def _dispatcher(target: str, uri: str | None) -> Dispatcher:
    """From the registry; where that answers but has nothing in production, the shipped pool's default kernel."""
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
    problem: dict[str, Any],
    best: Selection,
    ranked: tuple[Selection, ...],
    trust: Trust | None,
) -> dict[str, Any]:
    return {
        "target": dispatcher.target.name,
        "problem": problem,
        "kernel_name": best.kernel_name,
        "predicted_tflops": best.predicted_tflops,
        "why": best.why,
        "measured_ms": best.measured_ms,
        "trust": asdict(trust) if trust else None,
        "kernel": asdict(best.kernel),
        "model_version": dispatcher.version,
        "content_hash": dispatcher.content_hash,
        "kernel_count": dispatcher.kernel_count,
        "ranking": [{"kernel_name": s.kernel_name, "predicted_tflops": s.predicted_tflops} for s in ranked],
    }


def _to_json(document: dict[str, Any]) -> str:
    """A key a line, so that people can read it too."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n"


def _show(
    dispatcher: Dispatcher, best: Selection, ranked: tuple[Selection, ...], trust: Trust | None, console: Console
) -> None:
    source = "no model" if dispatcher.version is None else f"version {dispatcher.version}"
    title = f"{dispatcher.target.name} @production ({source}, {dispatcher.kernel_count} kernels), best first"
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
    if trust:
        console.print(_in_words(trust), soft_wrap=True, highlight=False)


def _in_words(trust: Trust) -> str:
    within = f"within {100 * trust.tolerance:g} % of the best"
    depth = f"measure all: no few of the best ranked are sure to be {within}"
    if trust.k is not None:
        depth = f"{within} {'by itself' if trust.k == 1 else f'if the best {trust.k} are measured'}"
    low, high = (100 * r for r in trust.regret)
    return (
        f"{100 * trust.level:g} % confidence: {low:.1f} to {high:.1f} % below the best; {depth}; "
        f"{trust.octaves:.2f} octaves from the nearest known shape"
    )
