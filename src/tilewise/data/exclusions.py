"""Rows that somebody decided to leave out: a file beside the data that says which, why and who.

A list in YAML or JSON; each entry has::

    - rule: outlier                    # the rule that the rows break, or "any": left out whatever they break
      key: {kernel_name: ..., N: 2}    # columns of the table and what the rows hold there
      reason: the timer was interrupted
      decided_by: a name

Beside ``data/x.parquet`` it is ``data/x.exclusions.yaml`` (or ``.json``); beside a folder's tables also
``exclusions.yaml``. An entry leaves out the rows that match its key and break its rule.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from tilewise.data.faults import RULES
from tilewise.errors import DataError

ANY = "any"
UNDECIDED = "???"  # what a template has where a decision belongs
METADATA = b"tilewise.exclusions"

_ENDINGS = (".yaml", ".yml", ".json")
_FIELDS = ("rule", "key", "reason", "decided_by")


@dataclass(frozen=True)
class Exclusion:
    """One decision. `source` names its file and entry."""

    rule: str
    key: Mapping[str, Any]
    reason: str
    decided_by: str
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without where it was read."""
        values = dataclasses.asdict(self)
        return {name: values[name] for name in _FIELDS}


def find_exclusions(paths: Iterable[Path]) -> tuple[Exclusion, ...]:
    """The exclusions beside tables (files, or folders of them), each file once.

    Raises:
        DataError: a file is malformed; the message names it and the entry.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found = sorted(f for e in _ENDINGS for f in path.rglob(f"*exclusions{e}"))
            files |= dict.fromkeys(f for f in found if f.stem == "exclusions" or f.stem.endswith(".exclusions"))
        else:
            beside = (path.with_name(f"{path.stem}.exclusions{e}") for e in _ENDINGS)
            files |= dict.fromkeys(f for f in beside if f.is_file())
    return tuple(e for file in files for e in load_exclusions(file))


def load_exclusions(file: Path) -> tuple[Exclusion, ...]:
    """The entries of a file.

    Raises:
        DataError: it is malformed, or an entry is not decided; the message names the file and the entry.
    """
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as e:
        raise DataError(f"{file}: not a readable list of exclusions: {' '.join(str(e).split())[:200]}") from e
    if values is None:
        return ()
    if not isinstance(values, list):
        raise DataError(f"{file}: exclusions are a list of entries with {', '.join(_FIELDS)}, got {_kind(values)}")
    return tuple(_entry(value, f"{file}: entry {number}") for number, value in enumerate(values, 1))


def _entry(value: Any, where: str) -> Exclusion:
    if not isinstance(value, dict) or set(value) != set(_FIELDS):
        got = ", ".join(map(str, value)) if isinstance(value, dict) else _kind(value)
        raise DataError(f"{where}: needs exactly {', '.join(_FIELDS)}, got {got}")
    rule, key = value["rule"], value["key"]
    if rule not in (*RULES, ANY):
        raise DataError(f"{where}: rule must be one of {', '.join((*RULES, ANY))}, got {rule!r}")
    if not isinstance(key, dict) or not key or not all(isinstance(v, str | int | float) for v in key.values()):
        raise DataError(f"{where}: key must name columns and their values, got {key!r}")
    for name in ("reason", "decided_by"):
        if not isinstance(value[name], str) or value[name].strip() in ("", UNDECIDED):
            raise DataError(f"{where}: {name} must be filled in, got {value[name]!r}")
    return Exclusion(rule, {str(k): v for k, v in key.items()}, value["reason"], value["decided_by"], where)


def matching(exclusion: Exclusion, rows: pd.DataFrame, faults: pd.DataFrame) -> pd.Series:
    """(rows,) which rows an exclusion leaves out: those that match its key and break its rule.

    Raises:
        DataError: the table has no such column, or the column holds values of another kind.
    """
    wanted = pd.Series(True, index=rows.index) if exclusion.rule == ANY else faults["rule"] == exclusion.rule
    for name, value in exclusion.key.items():
        if name not in rows.columns:
            raise DataError(f"{exclusion.source}: the table has no column {name!r}")
        values = rows[name]
        if isinstance(value, str) == pd.api.types.is_numeric_dtype(values):
            raise DataError(f"{exclusion.source}: column {name} holds no {_kind(value)} such as {value!r}")
        if isinstance(value, float):
            wanted &= np.isclose(values.to_numpy(dtype=np.float64, na_value=np.nan), value, rtol=1e-6, atol=0)
        else:
            wanted &= (values == value).fillna(False).astype(bool)
    return wanted


def template(rows: pd.DataFrame, faults: pd.DataFrame, key: Sequence[str]) -> str:
    """An exclusions file for the rows that break a rule, to be read, cut down and decided on.

    Args:
        rows: of a table.
        faults: theirs, from :func:`tilewise.data.faults.find_faults`.
        key: columns that tell the rows apart.
    """
    lines = [
        "# Rows that break a rule. Keep the entries of those that are to be left out, say why and who decided, and put",
        "# the file beside the table as NAME.exclusions.yaml. To leave all out at once, give them one decided_by.",
    ]
    for index, fault in faults[faults["rule"] != ""].iterrows():
        values = {name: _plain(rows[name][index]) for name in key}
        values = {name: value for name, value in values.items() if value is not None}
        lines += [
            f"- rule: {fault['rule']}",
            f"  key: {json.dumps(values)}",
            f"  reason: {json.dumps(fault['reason'])}",
            f'  decided_by: "{UNDECIDED}"',
        ]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _kind(value: Any) -> str:
    return {str: "text", int: "number", float: "number", dict: "mapping", list: "list"}.get(type(value), "value")
