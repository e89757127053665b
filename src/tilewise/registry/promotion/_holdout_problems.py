"""The problems of a holdout: production's are recorded, and the next candidate is judged on all of them.

Only problems whose kernels differ in speed count: on any other, every selection is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from tilewise.data import TargetTable, group_keys
from tilewise.errors import ConfigError, DataError
from tilewise.gate import parse_decision
from tilewise.ops import OPS, Problem
from tilewise.registry._history import read_history
from tilewise.registry._versions import Version, find_by_number
from tilewise.registry.promotion._logged_files import HOLDOUT_FILE, load_logged, logged_decision, text_digest
from tilewise.registry.promotion._override import Override

DIGEST_TAG, COUNT_TAG, RATES_TAG = "holdout_problems", "holdout_count", "holdout_rates"
SPREAD = 1.05  # fastest kernel / slowest kernel. Committed tables: 1.97 or more
KERNELS_KEPT = 0.9  # share of the recorded measurements that a later table needs


@dataclass(frozen=True)
class HoldoutProblems:
    """The problems of a holdout.

    Attributes:
        kernels: The number of measured kernels of each problem, by the problem's digest.
        rates: TFLOPS of these kernels by name; empty in records of an older tilewise.
        problems: The problems; empty in records.
    """

    kernels: Mapping[str, int]
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    problems: Mapping[str, Problem] = field(default_factory=dict)

    @classmethod
    def of(cls, holdout: TargetTable) -> Self:
        """Return the problems of a table whose measured kernels differ in speed.

        Raises:
            DataError: A rate is not a positive, finite number.
        """
        op, rows = holdout.target.op, holdout.labelled().rows
        wrong = rows["tflops"][~(np.isfinite(rows["tflops"]) & (rows["tflops"] > 0))]
        if len(wrong):
            raise DataError(
                f"tflops of a valid measurement must be a positive, finite number, got {wrong.iloc[0]} in {len(wrong)} "
                "rows of the holdout; read them with read_measurements, which checks them"
            )
        columns = list(OPS[op].column_names())
        rates: dict[str, dict[str, float]] = {}
        problems: dict[str, Problem] = {}
        for _, group in rows.groupby(columns, dropna=False, sort=True):
            if group["tflops"].max() < SPREAD * group["tflops"].min():
                continue
            first = group[columns].head(1)
            problem = OPS[op].from_dict({str(k): v for k, v in first.to_dict("records")[0].items()})
            digest = _digest(op, group_keys(op, first).tolist()[0], _stated_layout(problem))
            rates[digest] = {str(k): float(t) for k, t in zip(group["kernel_name"], group["tflops"], strict=True)}
            problems[digest] = problem
        return cls({digest: len(measured) for digest, measured in rates.items()}, rates, problems)

    @classmethod
    def loads(cls, text: str) -> Self | None:
        """Parse a text of :meth:`dumps`; return None if it is not one."""
        try:
            values = json.loads(text)
            if "names" in values:
                names = [str(name) for name in values["names"]]
                rates = {
                    str(digest): {names[int(i)]: float(rate) for i, rate in measured}
                    for digest, measured in values["rates"].items()
                }
                found = cls({digest: len(measured) for digest, measured in rates.items()}, rates)
            else:  # of an older tilewise
                found = cls({str(key): int(n) for key, n in values.items()})
            json.dumps(values, ensure_ascii=False).encode()  # a UnicodeEncodeError is a ValueError: half a character
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError):
            return None
        figures = (rate for measured in found.rates.values() for rate in measured.values())
        return found if all(0 < rate < np.inf for rate in figures) else None

    def dumps(self) -> str:
        """Return the problems and rates as JSON; rates have five digits."""
        names = sorted({name for measured in self.rates.values() for name in measured})
        place = {name: i for i, name in enumerate(names)}
        rates = {
            digest: [[place[name], float(f"{rate:.5g}")] for name, rate in sorted(measured.items())]
            for digest, measured in sorted(self.rates.items())
        }
        return json.dumps({"names": names, "rates": rates})

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the problems, independent of their order and kernels."""
        return text_digest("\n".join(sorted(self.kernels)))


@dataclass(frozen=True)
class RecordedHoldout:
    """The record of the holdout that a version was promoted on.

    Attributes:
        version: The version.
        count: The number of problems.
        digest: Their digest; None for a version of an older tilewise.
        problems: The problems; None if the list is lost, damaged or does not match the digest.
    """

    version: Version
    count: int
    digest: str | None
    problems: HoldoutProblems | None

    def lacking(self, holdout: HoldoutProblems) -> str | None:
        """Return in words how `holdout` falls short of this one; None if it contains this one."""
        if holdout.digest == self.digest:
            missing = 0
        elif self.problems is not None:
            missing = len(set(self.problems.kernels) - set(holdout.kernels))
        elif self.digest is not None:
            return f"its {len(holdout.kernels)} problems differ, and the list of production's is lost or damaged"
        else:
            missing = max(self.count - len(holdout.kernels), 0)
        if missing:
            return f"{missing} of these {self.count} are missing"
        if self.problems is None:
            return None
        before = sum(self.problems.kernels.values())
        now = sum(holdout.kernels.get(key, 0) for key in self.problems.kernels)
        return None if now >= KERNELS_KEPT * before else f"their measured kernels fell from {before} to {now}"


def recorded_holdout(target: str, production: Version | None) -> RecordedHoldout | None:
    """Return the record of production or, without one, of the newest version with a record that was in production."""
    earlier = [entry.production for entry in reversed(read_history(target))]
    for number in dict.fromkeys([*([production.number] if production else []), *earlier]):
        version = find_by_number(target, number or 0)
        record = None if version is None else _record(version)
        if record is not None:
            return record
    return None


def require_problems(holdout: HoldoutProblems, least: int) -> None:
    """Refuse a holdout that is too small to judge by.

    Raises:
        DataError: Fewer than `least` problems have kernels that differ in speed.
    """
    n = len(holdout.kernels)
    if n < least:
        raise DataError(
            f"the gate needs at least {least} holdout problems whose kernels differ in speed by "
            f"{SPREAD - 1:.0%} or more, got {n}; give data= with more measurements and the usual holdout.fraction "
            "(or a lower gate.min_problems with gate.override.reason)"
        )


def waived_holdout(holdout: HoldoutProblems, record: RecordedHoldout | None, override: Override) -> list[str]:
    """Return in words how the holdout falls short of production's, if that is waived; else an empty list.

    Raises:
        ConfigError: It falls short, and no override waives the rule.
    """
    lacking = None if record is None else record.lacking(holdout)
    if record is None or lacking is None:
        return []
    rule = f"the holdout must contain the {record.count} problems that production was judged on"
    remedy = "judge on all measurements and with the same holdout.fraction"
    override.waive(
        f"{rule}, but {lacking}; {remedy}", "gate.override.holdout=true", ConfigError, requested=override.holdout
    )
    return [f"{rule}, but {lacking}"]


def _record(version: Version) -> RecordedHoldout | None:
    text, tag = load_logged(version, HOLDOUT_FILE), version.tags.get(DIGEST_TAG)
    problems = HoldoutProblems.loads(text)
    same_rates = version.tags.get(RATES_TAG) in (None, text_digest(text))
    if problems is not None and tag in (None, problems.digest) and same_rates:
        return RecordedHoldout(version, len(problems.kernels), problems.digest, problems)
    if problems is not None and tag is not None:
        return RecordedHoldout(version, len(problems.kernels), "", None)  # one of the two was changed
    if tag is not None:
        tag = "" if RATES_TAG in version.tags else tag  # the rates are lost, and without them nothing can be compared
        count = version.tags.get(COUNT_TAG, "")
        return RecordedHoldout(version, int(count) if count.isdecimal() else 0, tag, None)
    decision = parse_decision(logged_decision(version))
    if decision is None or decision["outcome"] != "promoted" or "gate" not in decision:
        return None
    return RecordedHoldout(version, int(decision["gate"].get("n_problems", 0)), None, None)


def _stated_layout(problem: Problem) -> str:
    """Return the layout in the digest, "" for the default of ops that once had none: old records still match."""
    return str(problem.stated().get("layout", ""))


def _digest(op: str, key: list[int], layout: str) -> str:
    return text_digest(f"{op}:{','.join(map(str, key))}:{layout}")[:16]
