"""Select the kernel for one problem, or for each of a file, with the model in production or the one in a folder.

tilewise select 'problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3,pad_h:1,pad_w:1}' [target=NAME | model_dir=FOLDER]
tilewise select problems=FILE.csv|FILE.json [output=FILE.csv|FILE.json] [target=NAME | model_dir=FOLDER]
tilewise select 'problem={...}' 'kernels=[NAME,...]'      rank these kernels, in the model's pool or not

With model_dir= (or input=) the registry is not asked. A problem may state its dtype, which must be the target's. A
terminal gets a table, a pipe or output=FILE gets JSON (with problems=, output=FILE.csv gets CSV). `why` names the
source of the decision: the model, a measurement, or the fallback (the pool's default kernel) if no model was promoted
yet (docs/dispatching.md). `trust` is the confidence: the possible loss, and the number of best ranked kernels to
measure (docs/trust.md). kernels= may also name a file with one kernel per line.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.table import Table

from tilewise.cli._console import plain_console, write_document, write_result
from tilewise.cli.runtime.problem_rows import read_problems, to_csv
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import ConfigError, DataError, UnknownTargetError
from tilewise.files import write_text
from tilewise.model import QUANTITIES, Confidence, Prediction
from tilewise.ops import Problem

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SHOWN = 5


def run(cfg: DictConfig) -> None:
    """Select the kernel for ``cfg.problem``, or for each problem of the file ``cfg.problems``.

    Raises:
        ConfigError: the problem is missing, or both are given.
        DataError: the file of problems or of kernels cannot be used.
        UnknownTargetError: there is neither a model nor a shipped pool, or kernels are to be ranked without a model.
    """
    from omegaconf import OmegaConf

    if cfg.problem and cfg.problems:
        raise ConfigError("problem and problems: give one of them")
    if not cfg.problem and not cfg.problems:
        raise ConfigError(
            "problem: missing; give its dimensions, e.g. 'problem={N:32,C:256,K:256,G:1,Hi:14,Wi:14,Y:3,X:3}', or a "
            "file with problems=FILE"
        )
    kernels = _kernels(OmegaConf.to_object(cfg.kernels) if OmegaConf.is_list(cfg.kernels) else cfg.kernels)
    # Closing writes the line of TILEWISE_RECORD.
    with _from_folder(cfg.input) if cfg.input else _dispatcher(cfg.target, cfg.tracking.uri) as dispatcher:
        if cfg.problems:
            problems = read_problems(Path(cfg.problems), dispatcher.target)
            document: dict[str, Any] = {**_source(dispatcher), "selections": _rows(dispatcher, problems, kernels)}
        else:
            stated = cast("dict[str, int | str]", OmegaConf.to_container(cfg.problem, resolve=True))
            document = {**_source(dispatcher), "problem": stated, **_answer(dispatcher, stated, kernels)}
        confidence = None if cfg.problems or kernels else dispatcher.confidence(stated)
    document |= {} if cfg.problems or kernels else {"trust": confidence.to_dict() if confidence else None}
    _write(document, confidence, cfg.output)


def _write(document: dict[str, Any], confidence: Confidence | None, output: str | None) -> None:
    text = _to_json(document)
    if output:
        is_csv = Path(output).suffix == ".csv"
        if is_csv and "selections" not in document:
            raise ConfigError(f"output={output}: CSV is for problems=FILE; one problem is written as JSON")
        write_text(output, to_csv(_flat(document["selections"])) if is_csv else text)
        write_result(document, text)
    elif write_document(document, text):
        _show(document, confidence, plain_console())


def _kernels(stated: object) -> list[str] | None:
    """Return the kernels to rank: a list, or the lines of a file; None for the pool's."""
    if stated is None:
        return None
    if isinstance(stated, list):
        names = [str(name) for name in stated]
    else:
        try:
            lines = Path(str(stated)).read_text().splitlines()
        except OSError as e:
            raise DataError(f"kernels={stated}: neither a list such as [NAME,NAME] nor a readable file: {e}") from e
        names = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names:
        raise ConfigError("kernels: the list is empty; name at least one kernel, or leave it out for the pool's")
    return names


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


def _source(dispatcher: Dispatcher) -> dict[str, Any]:
    return {
        "target": dispatcher.target.name,
        "model_version": dispatcher.version,
        "content_hash": dispatcher.content_hash,
        "kernel_count": dispatcher.kernel_count,
    }


def _rows(dispatcher: Dispatcher, problems: list[Problem], kernels: list[str] | None) -> list[dict[str, Any]]:
    """Return a row per problem: the problem, and the selection without its ranking."""
    rows = []
    for problem in problems:
        answer = _answer(dispatcher, problem.to_dict(), kernels)
        rows.append({"problem": problem.to_dict(), **{k: answer[k] for k in ("kernel_name", *_FIGURES, "why")}})
    return rows


def _flat(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row["problem"], **{name: v for name, v in row.items() if name != "problem"}} for row in rows]


_FIGURES = (*(f"predicted_{name}" for name in QUANTITIES), "measured_ms")


def _answer(dispatcher: Dispatcher, problem: dict[str, int | str], kernels: list[str] | None) -> dict[str, Any]:
    """Return the selection and the ranking of the pool, or the ranking of the given kernels."""
    if kernels is not None:
        return _ranking_of(dispatcher, problem, kernels)
    best, ranked = dispatcher.select(problem), dispatcher.rank(problem, _SHOWN)
    predictor = dispatcher.predictor
    figures = {p.kernel_name: _figures(p) for p in predictor.predict(problem)} if predictor else {}
    nothing: dict[str, float | None] = dict.fromkeys(_FIGURES[:-1])
    known = figures.get(best.kernel_name, nothing) if best.predicted_tflops is not None else nothing
    return {
        "kernel_name": best.kernel_name,
        **known,
        "predicted_tflops": best.predicted_tflops,
        "why": best.why,
        "measured_ms": best.measured_ms,
        "kernel": asdict(best.kernel),
        "ranking": [
            {
                "kernel_name": s.kernel_name,
                **figures.get(s.kernel_name, nothing),
                "predicted_tflops": s.predicted_tflops,
                "why": s.why,
            }
            for s in ranked
        ],
    }


def _ranking_of(dispatcher: Dispatcher, problem: dict[str, int | str], kernels: list[str]) -> dict[str, Any]:
    if dispatcher.predictor is None:
        raise UnknownTargetError(
            f"kernels: ranking needs a model of {dispatcher.target.name}; train one, or model_dir="
        )
    predicted = dispatcher.predictor.predict(problem, kernels)
    able = sorted((p for p in predicted if p.why_unsupported is None), key=lambda p: -p.tflops)
    ranking = [{"kernel_name": p.kernel_name, **_figures(p), "why": "model"} for p in able]
    first: dict[str, Any] = ranking[0] if able else dict.fromkeys(("kernel_name", *_FIGURES, "why"))
    return {
        **first,
        "measured_ms": None,
        "kernel": asdict(able[0].kernel) if able else None,
        "ranking": ranking,
        "unsupported": {p.kernel_name: p.why_unsupported for p in predicted if p.why_unsupported},
    }


def _figures(prediction: Prediction) -> dict[str, float | None]:
    return {f"predicted_{name}": value for name, value in prediction.figures().items()}


def _to_json(document: dict[str, object]) -> str:
    """Return JSON with one key per line, so that it is readable."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n"


def _show(document: dict[str, Any], confidence: Confidence | None, console: Console) -> None:
    source = f"model {document['content_hash'][:12]}" if document["content_hash"] else "no model"
    if document["model_version"] is not None:
        source = f"@production, version {document['model_version']}"
    order = "in the order of the file" if "selections" in document else "best first"
    title = f"{document['target']} ({source}, {document['kernel_count']} kernels), {order}"
    console.print(title, soft_wrap=True, highlight=False)
    table = Table()
    table.add_column("kernel", overflow="fold")
    for heading in ("predicted TFLOPS", "ms", "GB/s"):
        table.add_column(heading, justify="right")
    table.add_column("why")
    for row in document.get("selections", document.get("ranking", ())):
        cells = (_cell(row[name], digits) for name, digits in zip(_FIGURES, (".1f", ".4g", ".0f"), strict=False))
        table.add_row(row["kernel_name"] or "-", *cells, row["why"] or "-")
    console.print(table)
    for name, reason in document.get("unsupported", {}).items():
        console.print(f"{name}: {reason}", soft_wrap=True, highlight=False)
    if document.get("measured_ms") is not None:
        known = f"measured on this machine: {document['kernel_name']}, {1e3 * document['measured_ms']:.1f} us"
        console.print(known, soft_wrap=True, highlight=False)
    if confidence:
        console.print(_in_words(confidence), soft_wrap=True, highlight=False)


def _cell(value: float | None, digits: str) -> str:
    return "-" if value is None else format(value, digits)


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
