"""Exclusions: decisions to leave rows out, in a file beside the data that states which rows, why, and who decided.

The file is a list in YAML or JSON. Each entry has::

    - rule: outlier                    # the rule that the rows break; "any" matches good rows as well
      key: {kernel_name: ..., N: 2}    # columns of the table, with the values of the rows
      reason: the timer was interrupted
      decided_by: a name

The file for ``data/x.parquet`` is ``data/x.exclusions.yaml`` (or ``.json``). A folder may also have one
``exclusions.yaml``. An entry leaves out the rows that match its key and break its rule.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import yaml

from tilewise.data.quality._faults import RULES
from tilewise.errors import DataError

Value: TypeAlias = "str | int | float"

ANY = "any"
UNDECIDED = "???"  # placeholder for a decision in a template
EXCLUSIONS_METADATA = b"tilewise.exclusions"

_ENDINGS = (".yaml", ".yml", ".json")
_FIELDS = ("rule", "key", "reason", "decided_by")


@dataclass(frozen=True)
class Exclusion:
    """A decision to leave rows out. `source` names its file and entry."""

    rule: str
    key: Mapping[str, Value]
    reason: str
    decided_by: str
    source: str = ""

    def to_dict(self) -> dict[str, str | dict[str, Value]]:
        """Return the decision as plain data, without `source`."""
        values = dataclasses.asdict(self)
        return {name: values[name] for name in _FIELDS}


def find_exclusions(paths: Iterable[Path]) -> tuple[Exclusion, ...]:
    """Return the exclusions beside tables.

    Args:
        paths: files, or folders of files; an exclusions file that several share is read once.

    Raises:
        DataError: a file is malformed. The message names the file and the entry.
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
    """Read the entries of a file.

    Raises:
        DataError: the file is malformed, or an entry is undecided. The message names the file and the entry.
    """
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError) as e:
        raise DataError(f"{file}: not a readable list of exclusions: {' '.join(str(e).split())[:200]}") from e
    if values is None:
        return ()
    if not isinstance(values, list):
        raise DataError(f"{file}: exclusions must be a list of entries with {', '.join(_FIELDS)}, got {_kind(values)}")
    return tuple(_entry(value, f"{file}: entry {number}") for number, value in enumerate(values, 1))


def _entry(value: object, where: str) -> Exclusion:
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
    """Return which rows an exclusion leaves out: a mask of shape (rows,).

    Args:
        exclusion: the decision.
        rows: rows of a table.
        faults: the rows' faults, from :func:`._faults.find_faults`.

    Raises:
        DataError: the table lacks a column of the key, or the column holds values of another kind.
    """
    wanted = pd.Series(True, index=rows.index) if exclusion.rule == ANY else faults["rule"] == exclusion.rule
    for name, value in exclusion.key.items():
        if name not in rows.columns:
            raise DataError(f"{exclusion.source}: the key must name columns; the table has no column {name!r}")
        values = rows[name]
        if isinstance(value, str) == pd.api.types.is_numeric_dtype(values):
            raise DataError(f"{exclusion.source}: column {name} does not hold {_kind(value)}s such as {value!r}")
        if isinstance(value, float):
            wanted &= np.isclose(values.to_numpy(dtype=np.float64, na_value=np.nan), value, rtol=1e-6, atol=0)
        else:
            wanted &= (values == value).fillna(False).astype(bool)
    return wanted


def template(rows: pd.DataFrame, faults: pd.DataFrame, key: Sequence[str]) -> str:
    """Return an exclusions file for all rows that break a rule; a person then decides which entries to keep.

    Args:
        rows: rows of a table.
        faults: the rows' faults, from :func:`._faults.find_faults`.
        key: columns that identify a row.
    """
    lines = [
        "# Rows that break a rule. Keep the entries of the rows to leave out, fill in reason and decided_by, and put",
        "# the file beside the table as NAME.exclusions.yaml. To leave all rows out, fill in decided_by everywhere.",
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


def _plain(value: object) -> object:
    """Return a cell as a Python value, None if it is empty."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _kind(value: object) -> str:
    return {str: "text", int: "number", float: "number", dict: "mapping", list: "list"}.get(type(value), "value")
