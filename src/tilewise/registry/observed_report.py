"""The report of what shadows observed: for each two models who was right, as JSON and as a page to read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewise.errors import DataError
from tilewise.files import write_text
from tilewise.markdown import table
from tilewise.ops import OPS, Target
from tilewise.registry.observations import Observation, Observations
from tilewise.registry.observed import CLOSE, Seen, evidence

SHOWN = 10  # problems of the page, the slowest first

Report = dict[str, Any]


def report(observations: Observations, target: str, *, level: float, n_resamples: int) -> Report:
    """What was observed of a target, as plain data, the models that were seen last first.

    Args:
        observations: of any targets.
        target: name of the one to report on.
        level: of the interval of the mean speed-up.
        n_resamples: of its bootstrap.

    Raises:
        DataError: nothing was observed of the target.
        ConfigError: a setting is out of its range.
    """
    found = [o for o in observations.found if o.target == target]
    if not found:
        known = ", ".join(sorted({o.target for o in observations.found}))
        raise DataError(f"nothing was observed of {target}; there are observations of {known}")
    last: dict[frozenset[str], Observation] = {}
    for o in found:
        models = frozenset((o.production.content_hash, o.candidate.content_hash))
        last.pop(models, None)
        last[models] = o
    pairs = [_pair(found, o, level, n_resamples) for o in reversed(last.values())]
    return {"target": target, "level": level, "damaged": observations.damaged, "pairs": pairs}


def _pair(observations: Sequence[Observation], last: Observation, level: float, n_resamples: int) -> Report:
    """Two models, in the parts that they had last."""
    hashes = last.candidate.content_hash, last.production.content_hash
    found = evidence(observations, *hashes)
    about = [o for o in observations if {o.candidate.content_hash, o.production.content_hash} == set(hashes)]
    candidate, production, neither = found.right()
    interval = found.speed_up(level, n_resamples) if found.problems else None
    return {
        "production": {"content_hash": hashes[1], "version": last.production.version},
        "candidate": {"content_hash": hashes[0], "version": last.candidate.version},
        "first": min(o.time for o in about),
        "last": max(o.time for o in about),
        "devices": sorted({o.device for o in about if o.device}),
        "processes": len({o.pid for o in about}),
        "observations": found.observations,
        "problems": len(found.problems),
        "same_kernel": len(found.problems) - len(found.differing),
        "candidate_right": candidate,
        "production_right": production,
        "neither_right": neither,
        "untimed": found.untimed,
        "failed": list(found.failed),
        "speed_up": None if interval is None else dataclasses.asdict(interval),
        "served_ms": found.served_ms,
        "saved_ms": found.saved_ms,
        "per_problem": [p.to_dict() for p in sorted(found.problems, key=_slowest_first)],
    }


def _slowest_first(seen: Seen) -> tuple[float, str]:
    return seen.speed_up, str(seen.problem)


def write_report(folder: Path, values: Report) -> None:
    """Write ``shadow.json`` and ``shadow.md``.

    Raises:
        OSError: the folder cannot be written.
    """
    write_text(folder / "shadow.json", json.dumps(values, indent=1) + "\n")
    write_text(folder / "shadow.md", page(values))


def page(values: Report) -> str:
    """The report in Markdown."""
    parts = [
        f"# Observed of {values['target']}\n",
        *(_section(p, values["target"], values["level"]) for p in values["pairs"]),
    ]
    if values["damaged"]:
        parts.append(f"{values['damaged']} damaged lines are left out.\n")
    return "\n".join(parts)


def _section(pair: Mapping[str, Any], target: str, level: float) -> str:
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
    slower = [p for p in pair["per_problem"] if p["speed_up"] < 1 - CLOSE][:SHOWN]
    if slower:
        header = ["problem", "speed-up", "observations", "calls", "production's", "candidate's"]
        text += f"\nThe worst regressions:\n\n{table(header, [_row(p, target) for p in slower])}"
    return text + "".join(f"\nNot timed: {reason}\n" for reason in pair["failed"][:SHOWN])


def _interval(mean: Mapping[str, float], level: float) -> str:
    return f"{mean['delta']:.4f} ({mean['low']:.4f} to {mean['high']:.4f} at {level:.0%})"


def _model(model: Mapping[str, Any]) -> str:
    version = "" if model["version"] is None else f", version {model['version']}"
    return f"{model['content_hash'][:12]}{version}"


def _row(seen: Mapping[str, Any], name: str) -> list[str]:
    target = Target.parse(name)
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    return [
        OPS[target.op].in_words(seen["problem"]),
        f"{seen['speed_up']:.3f}",
        str(seen["observations"]),
        str(seen["calls"]),
        *(f"`{seen[side].removeprefix(prefix)}`" for side in ("production", "candidate")),
    ]
