"""Definitions: ops of the user's own, stated as plain data.

A definition names the columns of problems and of configurations, and optional expressions. Its problem type, kernels,
rules and features derive from it, so such an op needs no module here. It travels with every model of the op.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from tilewise.errors import ConfigError
from tilewise.expressions import FUNCTIONS, Formula

VARIANT = "universal"  # of every op of the user's own

MAX_COLUMNS = 64  # of a problem, and of a configuration
MAX_FEATURES = 64
MAX_CATEGORIES = 256

ProblemKind = Literal["int", "bool"] | tuple[str, ...]  # a tuple lists the values of a category
ConfigKind = Literal["int", "str", "bool"]

# Columns of every measurement table; a column of a definition must have another name.
RESERVED_COLUMNS = frozenset(
    {
        "op", "variant", "dtype", "arch", "target", "kernel", "kernel_name", "backend", "config", "problem",
        "latency_ms", "tflops", "bandwidth_gb_s", "status", "error", "is_valid", "run_id", "origin", "hw_device",
        "hw_uuid", "driver", "libraries", "measured_at", "regime", "unrolled", "repeats", "latency_min_ms",
        "latency_p20_ms", "latency_p80_ms", "sm_clock_mhz", "programs_version", "source_file", "source_row", "label",
        "fault",
        # Attributes of problems and kernels.
        "variants", "layouts", "later_columns", "definition", "values", "defaults", "stated", "in_words", "group_key",
        "layer_keys", "flops", "min_bytes", "implicit_gemm", "column_names", "column_kinds", "from_dict", "to_dict",
        "from_config", "name", "compiled_layout", "compiled_ndim", "registry_entry",
    }
)  # fmt: skip
# Names of backends, groups and models, which an op of that name would be taken for.
RESERVED_OPS = frozenset(
    {"gemm", "grouped_conv", "triton", "ck_tile", "vendor", "miopen", "none", "models", "all", "own"}
)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_CATEGORY = re.compile(r"[\w.+/<>:-]{1,60}", re.ASCII)
_NAME_RULE = "a letter, then up to 47 letters, digits and _"
_TEXT_FIELDS = ("flops", "bytes", "programs", "supports", "source")


@dataclass(frozen=True)
class OpDefinition:
    """An op of the user's own; frozen, hashable, and plain data by :meth:`to_dict`.

    Attributes:
        name: lower-case letters, digits and ``_``.
        problem: name and kind of each problem column: ``int`` (0 or more), ``bool``, or the values of a category.
        config: name and kind of each column of a configuration: ``int``, ``str`` or ``bool``.
        flops: expression of the problem's columns; without it TFLOPS are those of a nominal :data:`NOMINAL_FLOPS`.
        bytes: expression of the fewest bytes to move; likewise :data:`NOMINAL_BYTES`.
        programs: expression of the number of programs (blocks) of a launch, for features of waves.
        supports: condition that problem and configuration must meet, e.g. ``BLOCK_K <= K``; "" if all do.
        features: name and expression of features beyond the derived ones.
        source: digest of the kernels' source, or any text that changes with it; not interpreted.

    Raises:
        ConfigError: a name is malformed, reserved or used twice, or an expression is malformed; names the definition.
    """

    name: str
    problem: tuple[tuple[str, ProblemKind], ...]
    config: tuple[tuple[str, ConfigKind], ...]
    flops: str = ""
    bytes: str = ""
    programs: str = ""
    supports: str = ""
    features: tuple[tuple[str, str], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        _check_op_name(self.name)
        self._check_columns()
        for name in _TEXT_FIELDS:
            if not isinstance(getattr(self, name), str):
                raise self._error(f"{name} must be a text, got {getattr(self, name)!r:.60}")
        self._check_features()
        for field, formula in self.formulas.items():
            self._try(field, formula)

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"op {self.name}: {message}")

    def _check_columns(self) -> None:
        seen: dict[str, str] = {}
        for part in ("problem", "config"):
            columns = getattr(self, part)
            if not 1 <= len(columns) <= MAX_COLUMNS:
                raise self._error(f"{part} must have 1 to {MAX_COLUMNS} columns, got {len(columns)}")
            for name, kind in columns:
                if not isinstance(name, str) or not _COLUMN.fullmatch(name) or keyword.iskeyword(name):
                    raise self._error(
                        f"{part}: a column's name must be a letter, then letters, digits and _, got {name!r}"
                    )
                if name in RESERVED_COLUMNS or name in FUNCTIONS:
                    raise self._error(f"{part}: the name {name!r} is reserved; rename the column")
                if name in seen:
                    raise self._error(f"the column {name} is named twice, in {seen[name]} and in {part}; rename one")
                seen[name] = part
                self._check_kind(part, name, kind)
        if not any(kind == "int" for _, kind in self.problem):
            raise self._error("problem needs at least one column of integers")

    def _check_kind(self, part: str, name: str, kind: object) -> None:
        if part == "problem" and isinstance(kind, tuple):
            sound = all(isinstance(v, str) and _CATEGORY.fullmatch(v) for v in kind)
            if not sound or not 1 <= len(set(kind)) == len(kind) <= MAX_CATEGORIES:
                raise self._error(
                    f"problem: {name} must list 1 to {MAX_CATEGORIES} different texts of letters, digits and _.+/<>:-, "
                    f"got {kind!r:.80}"
                )
            return
        known = ("int", "bool") if part == "problem" else ("int", "str", "bool")
        if kind not in known:
            more = ", or a list of texts" if part == "problem" else ""
            raise self._error(f"{part}: the kind of {name} must be {', '.join(known)}{more}, got {kind!r:.60}")

    def _check_features(self) -> None:
        if len(self.features) > MAX_FEATURES:
            raise self._error(f"features must be at most {MAX_FEATURES}, got {len(self.features)}")
        names = [name for name, _ in self.features]
        for name, text in self.features:
            if not isinstance(name, str) or not _COLUMN.fullmatch(name) or names.count(name) > 1:
                raise self._error(
                    f"features: a name must be a letter, then letters, digits and _, and unique, got {name!r}"
                )
            if not isinstance(text, str) or not self.formula(f"features.{name}", text).names:
                raise self._error(f"features: {name} must be an expression with at least one column, got {text!r:.60}")

    @cached_property
    def problem_names(self) -> tuple[str, ...]:
        """The problem columns."""
        return tuple(name for name, _ in self.problem)

    @cached_property
    def config_names(self) -> tuple[str, ...]:
        """The columns of a configuration."""
        return tuple(name for name, _ in self.config)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The problem columns of integers, which identify a shape."""
        return tuple(name for name, kind in self.problem if kind == "int")

    @property
    def interface(self) -> tuple[object, ...]:
        """The columns and their kinds: tables, models and kernels of equal interface fit together."""
        return (self.name, self.problem, self.config)

    def formula(self, field: str, text: str) -> Formula:
        """Return an expression over this op's columns; `field` names it in messages.

        Raises:
            ConfigError: the expression is malformed.
        """
        both = field in ("programs", "supports") or field.startswith("features.")
        known = (*self.problem_names, *(self.config_names if both else ()))
        return Formula(text, known, f"op {self.name}: {field}")

    @cached_property
    def formulas(self) -> dict[str, Formula]:
        """The expressions that are stated, by field; features as ``features.NAME``."""
        stated = {name: getattr(self, name) for name in _TEXT_FIELDS if name != "source"}
        stated |= {f"features.{name}": text for name, text in self.features}
        return {name: self.formula(name, text) for name, text in stated.items() if text}

    def _try(self, field: str, formula: Formula) -> None:
        """Evaluate an expression once, so that operations on wrong kinds are refused here."""
        kind = np.asarray(formula({**_examples(self.problem), **_examples(self.config)})).dtype.kind
        if field == "supports" and kind != "b":
            raise self._error(f"supports must be a condition, such as BLOCK_K <= K, got {formula.text!r}")
        if field != "supports" and kind not in ("iuf" if field in _TEXT_FIELDS else "biuf"):
            raise self._error(f"{field} must be a number, got {formula.text!r}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the definition; the order of columns and features counts."""
        return hashlib.sha256(json.dumps(self.to_dict()).encode()).hexdigest()

    def to_dict(self) -> dict[str, object]:
        """Return the definition as plain data, without empty fields; the form of files and models."""
        values: dict[str, object] = {
            "name": self.name,
            "problem": {name: list(kind) if isinstance(kind, tuple) else kind for name, kind in self.problem},
            "config": dict(self.config),
        }
        values |= {name: getattr(self, name) for name in _TEXT_FIELDS if getattr(self, name)}
        return values | ({"features": dict(self.features)} if self.features else {})

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Build a definition from the result of :meth:`to_dict`, or from a file of that form.

        Raises:
            ConfigError: a key is missing or unknown, or a value breaks a rule.
        """
        known = [f.name for f in fields(cls)]
        if not isinstance(values, Mapping) or "name" not in values:
            raise ConfigError(f"a definition must be a mapping with the key name, got {values!r:.80}")
        plain = {str(key): value for key, value in values.items() if value is not None}
        op = f"op {plain['name']!s:.60}"
        if unknown := next((key for key in plain if key not in known), ""):
            raise ConfigError(f"{op}: unknown key {unknown!r}; known are {', '.join(known)}")
        for part in ("problem", "config"):
            if part not in plain:
                raise ConfigError(f"{op}: {part} is missing; it maps each column to its kind, such as {{M: int}}")
        for part in {"problem", "config", "features"} & plain.keys():
            if not isinstance(plain[part], Mapping):
                raise ConfigError(f"{op}: {part} must be a mapping of names, got {plain[part]!r:.60}")
            columns = plain[part].items()
            plain[part] = tuple((name, tuple(kind) if isinstance(kind, list) else kind) for name, kind in columns)
        return cls(**plain)


def _examples(columns: Sequence[tuple[str, object]]) -> dict[str, npt.NDArray[np.generic]]:
    """Return a value of each column's kind."""
    values = {"int": np.array([8]), "bool": np.array([1]), "str": np.array(["a"])}
    return {name: np.array(kind[:1]) if isinstance(kind, tuple) else values[str(kind)] for name, kind in columns}


def _check_op_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith("_") or "__" in name:
        raise ConfigError(
            "an op's name must be a lower-case letter, then up to 47 lower-case letters, digits and single _, "
            f"got {name!r}"
        )
    if name in RESERVED_OPS or f"_{VARIANT}_" in f"_{name}_":
        raise ConfigError(f"the op name {name!r} is reserved; choose another, such as my_{name}")
