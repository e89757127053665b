"""The shadow report: for each pair of models which picks were right, as JSON and as a Markdown page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from tilewise.errors import DataError
from tilewise.files import write_text
from tilewise.gate._decision_format import ProblemEntry
from tilewise.gate._evidence import CLOSE, ProblemEvidence, gather_evidence
from tilewise.gate._observations import Observation, Observations
from tilewise.markdown import table
from tilewise.ops import OPS, Target

MAX_ROWS = 10  # problems of the page, slowest first


class ModelEntry(TypedDict):
    """A model of a pair. A model from a folder has no `version`."""

    content_hash: str
    version: int | None


class PairEntry(TypedDict):
    """The figures of one pair of models."""

    production: ModelEntry
    candidate: ModelEntry
    first: str
    last: str
    devices: list[str]
    processes: int
    observations: int
    problems: int
    same_kernel: int
    candidate_right: int
    production_right: int
    neither_right: int
    untimed: int
    failed: list[str]
    speed_up: dict[str, float] | None
    served_ms: float
    saved_ms: float
    per_problem: list[ProblemEntry]


class ShadowReport(TypedDict):
    """The content of ``shadow.json``."""

    target: str
    level: float
    damaged: int
    pairs: list[PairEntry]


def build_shadow_report(observations: Observations, target: str, *, level: float, n_resamples: int) -> ShadowReport:
    """Summarise the observations of a target as plain data, the pair of models that was observed last first.

    Args:
        observations: Observations of any targets.
        target: Name of the target to report on.
        level: Confidence level of the interval of the mean speed-up.
        n_resamples: Number of its bootstrap resamples.

    Raises:
        DataError: There is no observation of the target.
        ConfigError: A setting is out of its range.
    """
    of_target = [o for o in observations.valid if o.target == target]
    if not of_target:
        known = ", ".join(sorted({o.target for o in observations.valid}))
        raise DataError(f"nothing was observed of {target}; there are observations of {known}: choose with target=")
    last_of_pair: dict[frozenset[str], Observation] = {}
    for o in of_target:
        models = frozenset((o.production.content_hash, o.candidate.content_hash))
        last_of_pair.pop(models, None)  # so that the newest pair is the last key
        last_of_pair[models] = o
    pairs = [_pair(of_target, o, level, n_resamples) for o in reversed(last_of_pair.values())]
    return {"target": target, "level": level, "damaged": observations.damaged, "pairs": pairs}


def _pair(observations: Sequence[Observation], last: Observation, level: float, n_resamples: int) -> PairEntry:
    """Summarise two models in the roles that they had in their last observation."""
    hashes = last.candidate.content_hash, last.production.content_hash
    evidence = gather_evidence(observations, *hashes)
    of_pair = [o for o in observations if {o.candidate.content_hash, o.production.content_hash} == set(hashes)]
    candidate_right, production_right, neither_right = evidence.count_right()
    interval = evidence.speed_up(level, n_resamples) if evidence.problems else None
    return {
        "production": {"content_hash": hashes[1], "version": last.production.version},
        "candidate": {"content_hash": hashes[0], "version": last.candidate.version},
        "first": min(o.time for o in of_pair),
        "last": max(o.time for o in of_pair),
        "devices": sorted({o.device for o in of_pair if o.device}),
        "processes": len({o.pid for o in of_pair}),
        "observations": evidence.n_observations,
        "problems": len(evidence.problems),
        "same_kernel": len(evidence.problems) - len(evidence.differing),
        "candidate_right": candidate_right,
        "production_right": production_right,
        "neither_right": neither_right,
        "untimed": evidence.n_untimed,
        "failed": list(evidence.errors),
        "speed_up": None if interval is None else dataclasses.asdict(interval),
        "served_ms": evidence.served_ms,
        "saved_ms": evidence.saved_ms,
        "per_problem": [p.to_dict() for p in sorted(evidence.problems, key=_slowest_first)],
    }


def _slowest_first(problem: ProblemEvidence) -> tuple[float, str]:
    return problem.speed_up, str(problem.problem)


def write_shadow_report(folder: Path, report: ShadowReport) -> None:
    """Write ``shadow.json`` and ``shadow.md``.

    Raises:
        OSError: The folder cannot be written.
    """
    write_text(folder / "shadow.json", json.dumps(report, indent=1) + "\n")
    write_text(folder / "shadow.md", shadow_report_page(report))


def shadow_report_page(report: ShadowReport) -> str:
    """Return the report in Markdown."""
    parts = [
        f"# Observed of {report['target']}\n",
        *(_section(p, report["target"], report["level"]) for p in report["pairs"]),
    ]
    if report["damaged"]:
        parts.append(f"{report['damaged']} damaged lines are left out.\n")
    return "\n".join(parts)


def _section(pair: PairEntry, target: str, level: float) -> str:
    differing = pair["problems"] - pair["same_kernel"]
    mean, served = pair["speed_up"], pair["served_ms"]
    figures = [
        (
            "observations",
            f"{pair['observations']} by {pair['processes']} processes on {', '.join(pair['devices']) or '-'}",
        ),
        ("from, to (UTC)", f"{pair['first'][:16]}, {pair['last'][:16]}"),
        ("problems", f"{pair['problems']}"),
        ("the same kernel", f"{pair['same_kernel']}"),
        ("candidate right", f"{pair['candidate_right']} of {differing}"),
        ("production right", f"{pair['production_right']} of {differing}"),
        (f"closer than {CLOSE:.0%}", f"{pair['neither_right']} of {differing}"),
        ("two picks, not timed", f"{pair['untimed']}"),
        ("speed-up, geometric mean", _interval(mean, level) if mean else "-"),
        ("GPU time of the calls, s", f"{served / 1e3:.3f}"),
        ("the candidate would save", f"{100 * pair['saved_ms'] / served:+.2f} %" if served else "-"),
    ]
    text = f"## Candidate {_model(pair['candidate'])} against production {_model(pair['production'])}\n\n"
    text += table(["figure", ""], figures)
    slower = [p for p in pair["per_problem"] if p["speed_up"] < 1 - CLOSE][:MAX_ROWS]
    if slower:
        header = ["problem", "speed-up", "observations", "calls", "production's", "candidate's"]
        text += f"\nThe worst regressions:\n\n{table(header, [_row(p, target) for p in slower])}"
    return text + "".join(f"\nNot timed: {reason}\n" for reason in pair["failed"][:MAX_ROWS])


def _interval(mean: Mapping[str, float], level: float) -> str:
    return f"{mean['delta']:.4f} ({mean['low']:.4f} to {mean['high']:.4f} at {level:.0%})"


def _model(model: ModelEntry) -> str:
    version = "" if model["version"] is None else f", version {model['version']}"
    return f"{model['content_hash'][:12]}{version}"


def _row(problem: ProblemEntry, name: str) -> list[str]:
    target = Target.parse(name)
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    return [
        OPS[target.op].in_words(problem["problem"]),
        f"{problem['speed_up']:.3f}",
        str(problem["observations"]),
        str(problem["calls"]),
        *(f"`{kernel.removeprefix(prefix)}`" for kernel in (problem["production"], problem["candidate"])),
    ]
