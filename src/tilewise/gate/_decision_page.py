"""``promotion.html``: one promotion's decision as a page, without scripts and without anything to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tilewise.gate._decision_format import (
    CheckEntry,
    ConditionEntry,
    EvidenceEntry,
    GateEntry,
    ModelIdentity,
    OverrideEntry,
    PromotionDecision,
    RegressionEntry,
    SliceEntry,
)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2430; max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 1.8em }
table { border-collapse: collapse } th, td { padding: .25em .8em; border-bottom: 1px solid #d8dce4; text-align: right }
th:first-child, td:first-child, td.text { text-align: left } th { font-weight: 600; background: #f3f5f8 }
code { font-size: .92em } .yes { color: #18794e } .no { color: #c62a2f; font-weight: 600 }
.badge { padding: .15em .6em; border-radius: .3em; color: #fff; background: #18794e } .badge.no { background: #c62a2f }
small, .note { color: #5b6472 }
"""
_OUTCOMES = {
    "promoted": "promoted",
    "canary": "canary",
    "refused": "refused",
    "already_production": "in production already",
    "unpublished": "not published",
}
_STATISTICS = (("mean", "mean"), ("median", "median"), ("p10", "P10"), ("min", "worst problem"))


def decision_to_html(decision: PromotionDecision) -> str:
    """Return the page. Equal decisions give equal pages.

    Args:
        decision: The content of ``promotion.json``. Sections without data, as in older files, are left out.
    """
    outcome, target = decision.get("outcome", ""), decision.get("target", "")
    gate = decision.get("gate")
    words = _OUTCOMES.get(outcome, outcome)
    kind = "no" if outcome == "refused" else ""
    body = [
        f'<h1>{escape(target)} <span class="badge {kind}">{escape(words)}</span></h1>',
        _list(decision.get("reasons", [])),
        _override(decision.get("override")),
        _models(decision.get("candidate"), decision.get("production")),
    ]
    if gate:
        body += [
            _efficiency(decision, gate),
            _checks([*gate.get("checks", []), *gate.get("conditions", [])]),
            _slices(gate.get("slices", [])),
            _regressed(gate.get("regressed", [])),
            _evidence(gate.get("observed")),
        ]
    if decision.get("notes"):
        body += ["<h2>To be known</h2>", _list(decision["notes"])]
    title = escape(f"{target}: {words}")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _override(override: OverrideEntry | None) -> str:
    if not override:
        return ""
    reason = escape(override["reason"])
    return f'<h2 class="no">Rules of the gate were waived</h2>\n<p>Reason: {reason}</p>\n{_list(override["waived"])}'


def _models(candidate: ModelIdentity | None, production: ModelIdentity | None) -> str:
    models = [dict(model or {}) for model in (candidate, production)]
    names = (("content_hash", "content"), ("data_hash", "data"), ("git_revision", "code"))
    rows = [[label, *(f"<code>{escape(str(m.get(k) or '-')[:12])}</code>" for m in models)] for k, label in names]
    rows += [["learnt label", *(escape(str(m.get("label", "-"))) for m in models)]]
    rows += [["kernels in the pool", *(str(m.get("pool_size", "-")) for m in models)]]
    return "<h2>Models</h2>\n" + _table(("", "candidate", "production"), rows)


def _efficiency(decision: PromotionDecision, gate: GateEntry) -> str:
    ours, theirs = gate.get("candidate") or {}, gate.get("production") or {}
    holdout = decision.get("holdout") or {}
    ceiling = holdout.get("noise_ceiling")
    rows = []
    for name, label in _STATISTICS:
        a, b = ours.get(name), theirs.get(name)
        limit = _percent(ceiling.get(f"{name}_efficiency")) if ceiling else "-"
        rows.append([label, _percent(a), _percent(b), _change(a, b), limit])
    models = (decision["candidate"], decision.get("production"))
    pools = " and ".join(str(model.get("pool_size")) for model in models if model)
    summary = f"{gate.get('n_problems', 0)} holdout problems; {holdout.get('split_rule', '')}; pools of {pools} kernels"
    header = ("", "candidate", "production", "points", "noise ceiling")
    return f'<h2>Efficiency</h2>\n{_table(header, rows)}\n<p class="note">{escape(summary)}</p>'


def _checks(checks: Iterable[CheckEntry | ConditionEntry]) -> str:
    rows = [[escape(c["name"].replace("_", " ")), _verdict(c["passed"]), escape(c["reason"])] for c in checks]
    return "<h2>Criteria</h2>\n" + _table(("criterion", "passed", ""), rows, text=(2,))


def _slices(slices: Iterable[SliceEntry]) -> str:
    rows = []
    for s in slices:
        cells = []
        for name in ("mean", "median", "p10"):
            a, b = s["candidate"].get(name), s["production"].get(name)
            cells.append(f"{_percent(a)} <small>({_change(a, b)})</small>")
        rows.append([escape(f"{s['slice']} {s['value']}"), str(s["n_problems"]), *cells, _verdict(not s["failed"])])
    if not rows:
        return ""
    header = ("slice", "problems", "mean", "median", "P10", "passed")
    note = "the candidate's efficiency (points above production's); refused is what is surely worse than allowed"
    return f'<h2>Slices</h2>\n{_table(header, rows)}\n<p class="note">{note}</p>'


def _regressed(regressions: Iterable[RegressionEntry]) -> str:
    rows = [
        [
            _problem(r["problem"]),
            _percent(r["production"]),
            _percent(r["candidate"]),
            f"{-r['drop_points']:+.2f}",
        ]
        for r in regressions
    ]
    if not rows:
        return ""
    return "<h2>Problems that fall too far</h2>\n" + _table(("problem", "production", "candidate", "points"), rows)


def _evidence(evidence: EvidenceEntry | None) -> str:
    if not evidence:
        return ""
    right = f"candidate right {evidence['candidate_right']}, production {evidence['production_right']}"
    rows = [[_problem(r["problem"]), str(r["observations"]), f"{r['speed_up']:.3f}"] for r in evidence["regressed"]]
    slower = _table(("problem that is surely slower", "observations", "speed-up"), rows) if rows else ""
    verdict = f"{_verdict(evidence['passed'])}: {escape(evidence['note'])}; {right}"
    return f"<h2>Observed by a shadow</h2>\n<p>{verdict}</p>\n{slower}"


def _problem(sizes: dict[str, object] | dict[str, int | str]) -> str:
    return "<code>" + escape(" ".join(f"{k}={v}" for k, v in sizes.items())) + "</code>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    kinds = [' class="text"' if i in text else "" for i in range(len(header))]
    lines = ["".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(str(item))}</li>" for item in items) + "\n</ul>"


def _verdict(passed: bool) -> str:
    return '<span class="yes">yes</span>' if passed else '<span class="no">no</span>'


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _change(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or theirs is None else f"{100 * (ours - theirs):+.2f}"
