"""The schema of an artefact's JSON files: each field's type and range, checked before anything reads it.

JSON of another origin may hold anything: true is an int in Python, NaN passes every comparison that is negated, and
NumPy turns texts into numbers. So a value must have exactly its type, and numbers must be finite. Keys that a schema
does not name, from older or newer libraries, may hold any finite plain data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from tilewise.arch import LATER_FIGURES
from tilewise.metrics import METRICS
from tilewise.model._label_names import LABELS

MAX_DEPTH = 20  # of nested lists and objects; tilewise writes at most 5
MAX_INT = 2**63


class Fault(NamedTuple):
    """A field that breaks its rule."""

    path: str
    rule: str
    value: object


Rule: TypeAlias = Callable[[object, str], Fault | None]

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_MISSING = "present"
_NUMBERS, _WHOLES = frozenset({int, float}), frozenset({int})


def first_fault(values: Mapping[str, object], rule: Rule) -> str | None:
    """Return the first field of a file that breaks its rule, in words, or None."""
    fault = rule(values, "")
    if fault is None:
        return None
    if fault.rule is _MISSING:
        return f"{fault.path} is missing"
    return f"{fault.path or 'the file'} must be {fault.rule}, got {fault.value!r:.60}"


# ---- rules of single values -----------------------------------------------------------------------------------------


def _leaf(rule: str, holds: Callable[[object], bool]) -> Rule:
    def check(value: object, path: str) -> Fault | None:
        return None if holds(value) else Fault(path, rule, value)

    return check


def _is_number(value: object) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < MAX_INT)


def _number(rule: str, holds: Callable[[float], bool]) -> Rule:
    return _leaf(rule, lambda v: _is_number(v) and holds(v))  # type: ignore[arg-type]  # checked to be a number


def _whole(at_least: int) -> Rule:
    rule = f"a whole number of at least {at_least}"
    return _leaf(rule, lambda v: type(v) is int and at_least <= v < MAX_INT)


_TEXT = _leaf("a text", lambda v: type(v) is str)
_OPTIONAL_TEXT = _leaf("a text or null", lambda v: v is None or type(v) is str)
_DIGEST = _leaf("a SHA-256 in 64 hexadecimal digits", lambda v: type(v) is str and _HEX_DIGEST.fullmatch(v) is not None)
_LABEL = _leaf(f"one of {', '.join(LABELS)}", lambda v: type(v) is str and v in LABELS)
_FINITE = _number("a finite number", lambda v: True)
_POSITIVE = _number("a positive finite number", lambda v: v > 0)
_NOT_NEGATIVE = _number("a finite number of at least 0", lambda v: v >= 0)
_SHARE = _number("a number from 0 to 1", lambda v: 0 <= v <= 1)
_PART = _number("a number of at least 0 and below 1", lambda v: 0 <= v < 1)
_AT_MOST_1 = _number("a finite number of at most 1", lambda v: v <= 1)


# ---- rules of lists and objects -------------------------------------------------------------------------------------


def _list_of(rule: Rule, at_least: int = 0) -> Rule:
    def check(value: object, path: str) -> Fault | None:
        if type(value) is not list or len(value) < at_least:
            return Fault(path, f"a list of at least {at_least} entries" if at_least else "a list", value)
        return next((f for f in (rule(v, f"{path}[{i}]") for i, v in enumerate(value)) if f), None)

    return check


def _map_of(rule: Rule) -> Rule:
    def check(value: object, path: str) -> Fault | None:
        if type(value) is not dict:
            return Fault(path, "an object", value)
        return next((f for f in (rule(v, _join(path, key)) for key, v in value.items()) if f), None)

    return check


def _object(required: Mapping[str, Rule], optional: Mapping[str, Rule] | None = None) -> Rule:
    """Return the rule of an object; keys that are not named may hold any finite plain data."""
    rules = {**required, **(optional or {})}

    def check(value: object, path: str) -> Fault | None:
        if type(value) is not dict:
            return Fault(path, "an object", value)
        for key in required:
            if key not in value:
                return Fault(_join(path, key), _MISSING, None)
        return next((f for f in (rules.get(k, _plain)(v, _join(path, k)) for k, v in value.items()) if f), None)

    return check


def _numbers(types: frozenset[type], rule: str, nested: int = 0) -> Rule:
    """Return the rule of a list of finite numbers; `nested`: of lists of such lists. Fast enough for a million."""

    def check(value: object, path: str) -> Fault | None:
        rows: Sequence[object] = [value]
        for _ in range(nested):
            if not all(type(row) is list for row in rows):
                break
            rows = list(chain.from_iterable(rows))  # type: ignore[arg-type]  # they are lists
        if not all(type(row) is list for row in rows):
            return Fault(path, rule, value)
        flat: list[int | float] = list(chain.from_iterable(rows))  # type: ignore[arg-type]  # they are lists
        if not set(map(type, flat)) <= types:
            return Fault(path, rule, next(v for v in flat if type(v) not in types))
        if not flat or _all_finite(flat):
            return None
        bad = next((v for v in flat if not _is_number(v)), None)
        return None if bad is None else Fault(path, rule, bad)

    return check


def _all_finite(flat: Sequence[int | float]) -> bool:
    """Return True if all numbers are surely finite and within int64; a tenth of the time of a loop."""
    try:
        return max(flat) < MAX_INT and min(flat) > -MAX_INT and math.isfinite(sum(flat))
    except OverflowError:
        return False


def _plain(value: object, path: str, depth: int = 0) -> Fault | None:
    """Check that a value is finite plain data."""
    if depth > MAX_DEPTH:
        return Fault(path[:200], f"nested at most {MAX_DEPTH} deep", "more")
    if type(value) is dict:
        return next((f for f in (_plain(v, _join(path, k), depth + 1) for k, v in value.items()) if f), None)
    if type(value) is list:
        return next((f for f in (_plain(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)) if f), None)
    return _FINITE(value, path) if type(value) in (int, float) else None


def _join(path: str, key: str) -> str:
    shown = key if len(key) <= 60 else f"{key[:60]}..."
    return f"{path}.{shown}" if path else shown


# ---- the files ------------------------------------------------------------------------------------------------------

_PARAMETER = _leaf(
    "a finite number, a text, true, false, null or a list of texts",
    lambda v: (
        v is None
        or type(v) in (str, bool)
        or _is_number(v)
        or (type(v) is list and all(type(entry) is str for entry in v))
    ),
)
MANIFEST_RULE = _object(
    {},
    {
        "target": _TEXT,
        "data_hash": _TEXT,
        "git_revision": _TEXT,
        "parameters": _map_of(_PARAMETER),
        "tuned": _list_of(_TEXT),
        "n_splits": _whole(1),
        "seed": _whole(0),
        "holdout_fraction": _PART,
        "split_rule": _TEXT,
        "n_problems": _whole(0),
        "n_rows": _whole(0),
        "n_holdout_problems": _whole(0),
        "group_keys": _DIGEST,
        "holdout_keys": _DIGEST,
        "pool_size": _whole(1),
        "teachers": _list_of(_TEXT),
        "libraries": _map_of(_TEXT),
        "warm_start": _list_of(
            _object({"base": _TEXT}, {"base_data_hash": _OPTIONAL_TEXT, "trees": _whole(0), "data_hash": _TEXT})
        ),
    },
)

_OTHER_FIGURES = {"n_problems": _whole(0), "tflops_error": _NOT_NEGATIVE, "r2": _AT_MOST_1, "rmse": _NOT_NEGATIVE}
_FIGURES = {name: _OTHER_FIGURES.get(name, _SHARE) for name in METRICS}
_FOLD = _object({}, _FIGURES)
METRICS_RULE = _object({}, {**_FIGURES, "overall": _FOLD, "folds": _list_of(_FOLD), "split_rule": _TEXT})

IMPORTANCES_RULE = _map_of(_NOT_NEGATIVE)

DEFINITION_RULE = _object({"name": _TEXT, "digest": _DIGEST})

SPEC_RULE = _object(
    {
        "target": _object(dict.fromkeys(("op", "variant", "dtype", "arch"), _TEXT)),
        "label": _LABEL,
        "shortlist": _whole(0),
        "schema_hash": _TEXT,
        "arch": _object(
            {"name": _TEXT, "vendor": _TEXT, "device": _TEXT, "peak_tflops": _map_of(_POSITIVE)},
            {
                "backend": _TEXT,
                "warp_tiles": _map_of(_list_of(_list_of(_whole(1)))),
                **dict.fromkeys(("clock_mhz", "dram_gb_s"), _POSITIVE),
                **dict.fromkeys(("compute_units", "warp_size", "registers", "l2_bytes", "dram_bytes"), _whole(1)),
                **dict.fromkeys(("shared_memory_bytes", "shared_memory_unit_bytes"), _whole(1)),
                **dict.fromkeys(("max_blocks", "max_threads", *LATER_FIGURES), _whole(1)),
            },
        ),
        "features": _list_of(_object({"name": _TEXT}, {"unit": _TEXT, "role": _TEXT, "meaning": _TEXT}), 1),
    }
)

_KERNEL_VALUE = _leaf(
    "a text, true, false or a whole number of at least 0",
    lambda v: type(v) in (str, bool) or (type(v) is int and 0 <= v < MAX_INT),
)


def _kernel(value: object, path: str) -> Fault | None:
    if type(value) is not dict or type(value.get("kernel_name")) is not str:
        return Fault(path, "a kernel with its kernel_name", value)
    return next((f for f in (_KERNEL_VALUE(v, _join(path, k)) for k, v in value.items()) if f), None)


POOL_RULE = _object(
    {"op": _TEXT, "variant": _TEXT, "dtype": _TEXT, "hash": _DIGEST, "kernels": _list_of(_kernel, 1)},
    {"backend": _TEXT, "default": _TEXT},
)

_FEATURE_ROW, _SCORES = _numbers(_NUMBERS, "a list of finite numbers"), _numbers(_NUMBERS, "a list of finite numbers")
SELFTEST_RULE = _object(
    {
        "schema_hash": _TEXT,
        "pool_hash": _TEXT,
        "files": _map_of(_DIGEST),
        "problems": _list_of(
            _object(
                {
                    "problem": _map_of(_leaf("a whole number or a text", lambda v: type(v) in (int, str))),
                    "features": _map_of(_FEATURE_ROW),
                    "scores": _SCORES,
                    "ranking": _list_of(_TEXT),
                    "tflops": _list_of(_POSITIVE),
                }
            )
        ),
    }
)

_VECTOR = _numbers(_NUMBERS, "a list of finite numbers")


def _weights(value: object, path: str) -> Fault | None:
    rule = "a list of [kernel, program, weights]"
    if type(value) is not list:
        return Fault(path, rule, value)
    for i, entry in enumerate(value):
        where = f"{path}[{i}]"
        if type(entry) is not list or len(entry) != 3:
            return Fault(where, rule, entry)
        if fault := (_WHOLE_0(entry[0], f"{where}[0]") or _WHOLE_0(entry[1], f"{where}[1]")):
            return fault
        if fault := _VECTOR(entry[2], f"{where}[2]"):
            return fault
    return None


_WHOLE_0 = _whole(0)
COST_MODEL_RULE = _object(
    {
        "version": _WHOLE_0,
        "terms_hash": _TEXT,
        "kernels": _whole(1),
        "programs": _list_of(_WHOLE_0, 1),
        "factors": _numbers(_NUMBERS, "a list of lists of finite numbers", 1),
        "centre": _VECTOR,
        "scale": _VECTOR,
        "weights": _weights,
    }
)
CALIBRATION_RULE = _object(
    {
        "version": _WHOLE_0,
        "covariates": _list_of(_TEXT, 1),
        **dict.fromkeys(("centre", "scale", "weights", "edges"), _VECTOR),
        "counts": _list_of(_WHOLE_0, 1),
        "intercept": _FINITE,
        "farthest": _NOT_NEGATIVE,
        "losses": _numbers(_WHOLES, "a list of lists of lists of whole numbers", 2),
        "keys": _numbers(_WHOLES, "a list of lists of whole numbers", 1),
    }
)
