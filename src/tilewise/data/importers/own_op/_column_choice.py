"""Choice of the problem, configuration and latency columns of any table, and the definition that follows from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from tilewise.errors import DataError
from tilewise.ops import RESERVED_COLUMNS, OpDefinition

UNITS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}  # milliseconds
MAX_CATEGORY_VALUES = 64
MISTYPED_SHARE = 0.5  # of numbers, above which the texts of a column are mistakes

_AS_IN = ", as in 'problem=[M,N,K]' 'config=[BLOCK_M,num_warps]'"
_LATENCY = re.compile(r"(?:(?:latency|time|runtime|duration|median|mean|p50)_?)?(?P<unit>ms|us|ns|s)?", re.IGNORECASE)
# Names of meta-parameters: Triton's launch options, tiles and groups.
_META = re.compile(
    r"num_(?:warps|stages|ctas)|maxnreg|waves_per_eu|matrix_instr_nonkdim|kpack|.*block.*|.*tile.*|.*group_size.*"
    r"|group_m|split_?k|.*unroll.*|.*stages?|.*warps?|even_k|b[mnk]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class StatedColumns:
    """The columns that a user names; empty ones are found by their names and kinds.

    Attributes:
        problem: the columns of the problem.
        config: the columns of the configuration.
        latency: the column of the latency.
        unit: its unit, a key of :data:`UNITS`; "" if the column's name tells, and else milliseconds.
    """

    problem: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    latency: str = ""
    unit: str = ""


def choose_columns(frame: pd.DataFrame, stated: StatedColumns, where: str) -> StatedColumns:
    """Return all columns of a table, those found where none are stated.

    Raises:
        DataError: a stated column is missing or is stated twice, or the columns cannot be told apart.
    """
    named = [*stated.problem, *stated.config, *([stated.latency] if stated.latency else [])]
    for name in named:
        if name not in frame.columns:
            raise DataError(f"{where}: column {name!r} is missing; the table has {', '.join(frame.columns)}")
        if named.count(name) > 1:
            raise DataError(f"{where}: column {name!r} is named twice; it can be of one part only")
    latency = stated.latency or _latency_of(frame, named, where)
    unit = stated.unit or _unit_of(latency)
    if unit not in UNITS:
        raise DataError(f"{where}: the unit of {latency} must be one of {', '.join(UNITS)}, got {unit!r}")
    left = [
        n for n in frame.columns if n not in (*named, latency) and n not in RESERVED_COLUMNS and _is_plain(frame[n])
    ]
    config = stated.config or tuple(n for n in left if stated.problem or _META.fullmatch(n))
    problem = stated.problem or tuple(n for n in left if n not in config)
    unclear = [] if stated.problem or stated.config else [n for n in problem if not _whole(frame[n])]
    if unclear:
        raise DataError(f"{where}: column {unclear[0]} may be of the problem or the configuration; name all{_AS_IN}")
    if not problem or not config:
        raise DataError(f"{where}: the columns {', '.join(frame)} cannot be told apart; name them{_AS_IN}")
    return StatedColumns(problem, config, latency, unit)


def define_op(name: str, frame: pd.DataFrame, columns: StatedColumns, expressions: Mapping[str, str]) -> OpDefinition:
    """Return the definition of an op whose measurements a table has.

    Raises:
        ConfigError: the name, a column or an expression breaks a rule of definitions.
        DataError: a column has values of no kind.
    """
    problem = tuple((column, _problem_kind(frame[column])) for column in columns.problem)
    config = tuple((column, _config_kind(frame[column])) for column in columns.config)
    return OpDefinition(name, problem, config, **expressions)  # type: ignore[arg-type]  # it checks the kinds


def _latency_of(frame: pd.DataFrame, named: Sequence[str], where: str) -> str:
    found = [n for n in frame.columns if n not in named and n and _LATENCY.fullmatch(n)]
    if len(found) != 1:
        several = f"{', '.join(found)} may each be it" if found else f"the table has {', '.join(frame.columns)}"
        raise DataError(f"{where}: the column of the latency is not clear: {several}; name it, as in latency=ms")
    return str(found[0])


def _unit_of(column: str) -> str:
    found = re.search(r"(?:^|_)(ms|us|ns|s)$", column.lower())
    return found[1] if found else "ms"


def _is_plain(values: pd.Series) -> bool:
    """Return whether a column may belong to problem or configuration: whole numbers, flags or texts."""
    return _whole(values) or bool(pd.api.types.is_bool_dtype(values)) or _is_text(values)


def _whole(values: pd.Series) -> bool:
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return False
    return bool(values.notna().all() and (values == values.round()).all())


def _is_text(values: pd.Series) -> bool:
    return all(isinstance(value, str) for value in values.unique())


def _problem_kind(values: pd.Series) -> str | tuple[str, ...]:
    kind = _config_kind(values)
    if kind != "str":
        return kind
    texts = sorted(values.unique())
    if len(texts) > MAX_CATEGORY_VALUES:
        raise DataError(
            f"column {values.name}: has {len(texts)} different texts; a problem's category has at most "
            f"{MAX_CATEGORY_VALUES}, and a size must hold whole numbers"
        )
    return tuple(texts)


def _config_kind(values: pd.Series) -> str:
    if pd.api.types.is_bool_dtype(values):
        return "bool"
    if _whole(values):
        return "int"
    if _is_text(values):
        _refuse_mistyped_numbers(values)
        return "str"
    bad = next(v for v in values if not isinstance(v, int) and not (isinstance(v, float) and v.is_integer()))
    raise DataError(f"column {values.name}: must hold whole numbers, true and false, or texts, got {bad!r}")


def _refuse_mistyped_numbers(values: pd.Series) -> None:
    """Refuse a column of texts most of which are numbers: one wrong cell would make each size a category."""
    is_number = pd.to_numeric(values, errors="coerce").notna()
    if is_number.mean() > MISTYPED_SHARE:
        bad = values[~is_number].iloc[0]
        raise DataError(
            f"column {values.name}: {bad!r} in row {values.index[~is_number][0] + 1} is among whole numbers; "
            "correct it, or leave that row out"
        )
