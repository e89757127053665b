"""``promotion.html``: a promotion's record as one page to read, without scripts and without anything to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2430; max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 1.8em }
table { border-collapse: collapse } th, td { padding: .25em .8em; border-bottom: 1px solid #d8dce4; text-align: right }
th:first-child, td:first-child, td.text { text-align: left } th { font-weight: 600; background: #f3f5f8 }
code { font-size: .92em } .yes { color: #18794e } .no { color: #c62a2f; font-weight: 600 }
.badge { padding: .15em .6em; border-radius: .3em; color: #fff; background: #18794e } .badge.no { background: #c62a2f }
small, .note { color: #5b6472 }
"""
_OUTCOMES = {"promoted": "promoted", "refused": "refused", "already_production": "in production already"}
_STATISTICS = (("mean", "mean"), ("median", "median"), ("p10", "P10"), ("min", "worst problem"))


def to_html(record: Mapping[str, Any]) -> str:
    """The page. Equal records give equal pages; what an older record lacks is left out.

    Args:
        record: as in ``promotion.json``.
    """
    outcome, gate = str(record.get("outcome", "")), record.get("gate") or {}
    title = f"{record.get('target', '')}: {_OUTCOMES.get(outcome, outcome)}"
    kind = "no" if outcome == "refused" else ""
    body = [
        f'<h1>{escape(str(record.get("target", "")))} <span class="badge {kind}">'
        f"{escape(_OUTCOMES.get(outcome, outcome))}</span></h1>",
        _list(record.get("reasons", [])),
        _models(record),
    ]
    if gate:
        body += [_efficiency(record, gate), _checks(gate), _slices(gate), _regressed(gate), _observed(gate)]
    if record.get("notes"):
        body += ["<h2>To be known</h2>", _list(record["notes"])]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _models(record: Mapping[str, Any]) -> str:
    models = [record.get("candidate") or {}, record.get("production") or {}]
    names = (("content_hash", "content"), ("data_hash", "data"), ("git_revision", "code"))
    rows = [[label, *(f"<code>{escape(str(m.get(k) or '-')[:12])}</code>" for m in models)] for k, label in names]
    rows += [[label, *(escape(str(m.get(k, "-"))) for m in models)] for k, label in (("label", "learnt label"),)]
    rows += [["kernels in the pool", *(str(m.get("pool_size", "-")) for m in models)]]
    return "<h2>Models</h2>\n" + _table(("", "candidate", "production"), rows)


def _efficiency(record: Mapping[str, Any], gate: Mapping[str, Any]) -> str:
    ours, theirs = gate.get("candidate") or {}, gate.get("production") or {}
    holdout = record.get("holdout") or {}
    ceiling = holdout.get("noise_ceiling")
    rows = []
    for name, label in _STATISTICS:
        a, b = ours.get(name), theirs.get(name)
        change = f"{100 * (a - b):+.2f}" if a is not None and b is not None else "-"
        limit = _percent(ceiling.get(f"{name}_efficiency")) if ceiling else "-"
        rows.append([label, _percent(a), _percent(b), change, limit])
    pools = " and ".join(str((record.get(m) or {}).get("pool_size")) for m in ("candidate", "production") if record[m])
    said = f"{gate.get('n_problems', 0)} holdout problems; {holdout.get('split_rule', '')}; pools of {pools} kernels"
    header = ("", "candidate", "production", "points", "noise ceiling")
    return f'<h2>Efficiency</h2>\n{_table(header, rows)}\n<p class="note">{escape(said)}</p>'


def _checks(gate: Mapping[str, Any]) -> str:
    checks = [*gate.get("checks", []), *gate.get("conditions", [])]
    rows = [[escape(c["name"].replace("_", " ")), _verdict(c["passed"]), escape(c["reason"])] for c in checks]
    return "<h2>Criteria</h2>\n" + _table(("criterion", "passed", ""), rows, text=(2,))


def _slices(gate: Mapping[str, Any]) -> str:
    rows = []
    for s in gate.get("slices", []):
        cells = []
        for name in ("mean", "median", "p10"):
            a, b = s["candidate"][name], s["production"][name]
            cells.append(f"{_percent(a)} <small>({100 * (a - b):+.2f})</small>")
        rows.append([escape(f"{s['slice']} {s['value']}"), str(s["n_problems"]), *cells, _verdict(not s["failed"])])
    if not rows:
        return ""
    header = ("slice", "problems", "mean", "median", "P10", "passed")
    note = "the candidate's efficiency (points above production's); refused is what is surely worse than allowed"
    return f'<h2>Slices</h2>\n{_table(header, rows)}\n<p class="note">{note}</p>'


def _regressed(gate: Mapping[str, Any]) -> str:
    rows = [
        [
            "<code>" + escape(" ".join(f"{k}={v}" for k, v in r["problem"].items())) + "</code>",
            _percent(r["production"]),
            _percent(r["candidate"]),
            f"{-r['drop_points']:+.2f}",
        ]
        for r in gate.get("regressed", [])
    ]
    if not rows:
        return ""
    return "<h2>Problems that fall too far</h2>\n" + _table(("problem", "production", "candidate", "points"), rows)


def _observed(gate: Mapping[str, Any]) -> str:
    seen = gate.get("observed")
    if not seen:
        return ""
    said = f"{seen['note']}; candidate right {seen['candidate_right']}, production {seen['production_right']}"
    rows = [
        [
            "<code>" + escape(" ".join(f"{k}={v}" for k, v in r["problem"].items())) + "</code>",
            str(r["observations"]),
            f"{r['speed_up']:.3f}",
        ]
        for r in seen["regressed"]
    ]
    slower = _table(("problem that is surely slower", "observations", "speed-up"), rows) if rows else ""
    return f"<h2>Observed by a shadow</h2>\n<p>{_verdict(seen['passed'])}: {escape(said)}</p>\n{slower}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    kinds = [' class="text"' if i in text else "" for i in range(len(header))]
    lines = ["".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _list(items: Iterable[Any]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(str(item))}</li>" for item in items) + "\n</ul>"


def _verdict(passed: bool) -> str:
    return '<span class="yes">yes</span>' if passed else '<span class="no">no</span>'


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
