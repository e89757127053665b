"""LightGBM's text models in NumPy: read and predict without LightGBM, which takes longer to import than to be useful.

Scores equal ``Booster.predict(raw_score=True)`` bit for bit: the same comparisons, and leaf values added tree by tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tilewise.core import compiled_core
from tilewise.errors import ArtefactError

_ZERO = float(np.float32(1e-35))  # LightGBM takes anything nearer to 0 for 0
_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of decision_type; bits 2 and 3 say what counts as missing
_MISSING_ZERO, _MISSING_NAN = 1, 2
_CHUNK = 1 << 15  # rows x trees walked at a time: their state stays in the cache
_MANY = 4096  # rows from which a table is walked tree by tree
_VERSIONS = ("v3", "v4")
_FIRST_TREE = re.compile(r"^Tree=\d+$", re.MULTILINE)


@dataclass(frozen=True)
class Ensemble:
    """The trees of a model, their nodes in one list; immutable, safe to share between threads.

    Leaves are nodes whose two children are themselves, so that a walk may go on past them.
    """

    feature_names: tuple[str, ...]
    roots: np.ndarray  # int64, (trees,): the first node of each tree
    feature: np.ndarray  # int64, (nodes,): the column compared; 0 for leaves
    threshold: np.ndarray  # float64, (nodes,): left where value <= threshold
    children: np.ndarray  # int64, (2 nodes,): right, left of node i at 2 i, 2 i + 1
    missing: np.ndarray  # int8, (nodes,): 0 nothing, 1 zero, 2 NaN counts as missing
    default_left: np.ndarray  # bool, (nodes,): where missing values go
    value: np.ndarray  # float64, (nodes,): score of a leaf; 0 for splits
    depth: int  # most splits on a path

    @property
    def n_trees(self) -> int:
        """Trees."""
        return len(self.roots)

    @property
    def n_features(self) -> int:
        """Columns of the matrix that :meth:`predict` takes."""
        return len(self.feature_names)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read LightGBM's text model (``Booster.model_to_string``): one score a row, numerical splits.

        Raises:
            ArtefactError: the text is damaged, or uses what is not supported (categorical splits, linear trees,
                several classes, averaged forests).
        """
        compiled = _compiled(text)
        header, trees = (compiled.header, []) if compiled else _sections(text)
        names = tuple(header.get("feature_names", "").split())
        if header.get("version") not in _VERSIONS:
            raise ArtefactError(
                f"LightGBM models of version {', '.join(_VERSIONS)} are read, got {header.get('version')!r}"
            )
        if header.get("num_tree_per_iteration") != "1" or "average_output" in header:
            raise ArtefactError("a model must give one score a row, the sum of its trees")
        if len(names) != _count(header, "max_feature_idx") + 1:
            raise ArtefactError(f"max_feature_idx is {header['max_feature_idx']}, but {len(names)} features are named")
        if compiled:
            return cls(names, *compiled.parts)
        parsed = [_tree(fields, len(names), f"tree {i}") for i, fields in enumerate(trees)]
        if not parsed:
            raise ArtefactError("the model has no trees")
        offsets = np.cumsum([0] + [len(t.feature) for t in parsed])
        return cls(
            names,
            offsets[:-1],
            np.concatenate([t.feature for t in parsed]),
            np.concatenate([t.threshold for t in parsed]),
            np.concatenate([t.children + at for t, at in zip(parsed, offsets, strict=False)]),
            np.concatenate([t.missing for t in parsed]),
            np.concatenate([t.default_left for t in parsed]),
            np.concatenate([t.value for t in parsed]),
            max(t.depth for t in parsed),
        )

    def predict(self, matrix: np.ndarray) -> np.ndarray:
        """Raw scores.

        Args:
            matrix: float64, (rows, n_features); NaN is missing.

        Returns:
            float64, (rows,).

        Raises:
            ValueError: the matrix has another shape.
        """
        matrix = np.ascontiguousarray(matrix, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != self.n_features:
            raise ValueError(f"the matrix must be (rows, {self.n_features}), got {matrix.shape}")
        plain = not ((self.missing == _MISSING_ZERO).any() or np.isnan(matrix).any())
        if plain and len(matrix) >= _MANY:
            return self._predict_many(matrix)
        step = max(_CHUNK // self.n_trees, 1)
        scores = np.empty(len(matrix))
        for start in range(0, len(matrix), step):
            chunk = matrix[start : start + step]
            values = self.value[self._leaves(chunk, plain)].reshape(self.n_trees, len(chunk))
            # accumulate adds tree by tree, as LightGBM does; a plain sum may pair them up
            scores[start : start + step] = np.add.accumulate(values, axis=0)[-1]
        return scores

    def directions(self, row: np.ndarray) -> np.ndarray:
        """Which way each split sends a row of features, should it come there: bool, (nodes,), True for left."""
        return self._goes_left(np.asarray(row, dtype=np.float64)[self.feature], np.arange(len(self.feature)))

    def _predict_many(self, matrix: np.ndarray) -> np.ndarray:
        """Scores of a whole table: tree by tree, its rows are parted at each split; the same bits as the other walk.

        Nothing is done for rows that have come to a leaf, and a column is read in the order of its rows.
        """
        columns = np.ascontiguousarray(matrix.T)
        feature, threshold = self.feature.tolist(), self.threshold.tolist()
        children, value = self.children.tolist(), self.value.tolist()
        scores, of_tree = np.zeros(len(matrix)), np.empty(len(matrix))
        for root in self.roots.tolist():
            waiting = [(root, np.arange(len(matrix), dtype=np.intp))]
            while waiting:
                node, rows = waiting.pop()
                right, left = children[2 * node : 2 * node + 2]
                if left == right:  # a leaf is its own child
                    of_tree[rows] = value[node]
                    continue
                goes_left = columns[feature[node]].take(rows) <= threshold[node]
                for child, part in ((left, rows.compress(goes_left)), (right, rows.compress(~goes_left))):
                    if len(part):
                        waiting.append((child, part))
            scores += of_tree
        return scores

    def _leaves(self, matrix: np.ndarray, plain: bool) -> np.ndarray:
        """The leaf of each (tree, row), flat: tree by tree. `plain`: no value can be missing."""
        values = matrix.ravel()
        row = np.tile(np.arange(len(matrix)) * self.n_features, self.n_trees)  # where each row begins in `values`
        node = np.repeat(self.roots, len(matrix))
        for _ in range(self.depth):
            x = values[row + self.feature[node]]
            left: np.ndarray = x <= self.threshold[node] if plain else self._goes_left(x, node)
            node = self.children[2 * node + left]
        return node

    def _goes_left(self, x: np.ndarray, node: np.ndarray) -> np.ndarray:
        kind, nan = self.missing[node], np.isnan(x)
        x = np.where(nan & (kind != _MISSING_NAN), 0.0, x)
        missing = ((kind == _MISSING_NAN) & nan) | ((kind == _MISSING_ZERO) & (np.abs(x) <= _ZERO))
        left: np.ndarray = np.where(missing, self.default_left[node], x <= self.threshold[node])
        return left


@dataclass(frozen=True)
class _Compiled:
    """What the compiled core read: the header, and what :class:`Ensemble` has behind its names."""

    header: dict[str, str]
    parts: tuple[Any, ...]


_TYPES = (np.int64, np.int64, np.float64, np.int64, np.int8, np.bool_, np.float64)


def _compiled(text: str) -> _Compiled | None:
    """Read by the compiled core, in a tenth of the time; None where it is not there, or finds anything unusual."""
    core, first = compiled_core(), _FIRST_TREE.search(text)
    if core is None or first is None or not text.startswith("tree\n"):
        return None
    header = dict(_pairs(text[: first.start()]))
    found = core.parse_trees(text, first.start(), len(header.get("feature_names", "").split()))
    if found is None or len(header.get("tree_sizes", "").split()) != len(found[0]) // 8:
        return None
    *arrays, depth = found
    return _Compiled(header, (*(np.frombuffer(a, t) for a, t in zip(arrays, _TYPES, strict=True)), depth))


@dataclass(frozen=True)
class _Tree:
    feature: np.ndarray
    threshold: np.ndarray
    children: np.ndarray
    missing: np.ndarray
    default_left: np.ndarray
    value: np.ndarray
    depth: int


def _tree(fields: dict[str, str], n_features: int, where: str) -> _Tree:
    """One tree: splits first, then leaves, as LightGBM numbers them."""
    leaves = _count(fields, "num_leaves", where)
    splits = leaves - 1
    if fields.get("is_linear", "0") != "0":
        raise ArtefactError(f"{where}: linear leaves are not supported; train with linear_tree=false")
    value = _numbers(fields, "leaf_value", np.float64, leaves, where)
    threshold = _numbers(fields, "threshold", np.float64, splits, where)
    kind, feature, left, right = (
        _numbers(fields, key, np.int64, splits, where)
        for key in ("decision_type", "split_feature", "left_child", "right_child")
    )
    left, right = (np.where(c < 0, splits + ~c, c) for c in (left, right))
    if (kind & _CATEGORICAL).any():
        raise ArtefactError(f"{where}: categorical splits are not supported; train without categorical features")
    if np.isnan(threshold).any() or not np.isfinite(value).all():
        raise ArtefactError(f"{where}: thresholds and leaf values must be numbers")
    if splits and (feature.min() < 0 or feature.max() >= n_features):
        raise ArtefactError(f"{where}: a split uses a feature beyond the {n_features} of the model")
    # a child comes after its parent and has only one: then every walk ends in a leaf
    numbers = np.arange(splits)
    both = np.concatenate([left, right])
    if (both <= np.concatenate([numbers, numbers])).any() or sorted(both.tolist()) != list(range(1, splits + leaves)):
        raise ArtefactError(f"{where}: its nodes do not form a tree")
    depth = np.zeros(splits + leaves, dtype=np.int64)
    for node in range(splits):
        depth[left[node]] = depth[right[node]] = depth[node] + 1
    at = np.arange(splits, splits + leaves)
    pad = np.zeros(leaves, dtype=np.int64)
    return _Tree(
        np.concatenate([feature, pad]),
        np.concatenate([threshold, pad]),
        np.stack([np.concatenate([right, at]), np.concatenate([left, at])], axis=1).ravel(),
        np.concatenate([kind >> 2 & 3, pad]).astype(np.int8),
        np.concatenate([kind & _DEFAULT_LEFT, pad]).astype(bool),
        np.concatenate([np.zeros(splits), value]),
        int(depth.max()),
    )


def _sections(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The header and each tree, as key -> value; what follows ``end of trees`` (importances, ...) is left out."""
    body, end, _ = text.partition("\nend of trees")
    if not text.startswith("tree\n") or not end:
        raise ArtefactError("not a whole LightGBM text model: it begins with 'tree' and has a line 'end of trees'")
    header, *trees = re.split(r"^Tree=\d+$", body, flags=re.MULTILINE)
    fields = dict(_pairs(header))
    if "tree_sizes" in fields and len(fields["tree_sizes"].split()) != len(trees):
        raise ArtefactError(f"{len(fields['tree_sizes'].split())} trees are announced, {len(trees)} found")
    return fields, [dict(_pairs(tree)) for tree in trees]


def _pairs(section: str) -> Iterator[tuple[str, str]]:
    for line in section.splitlines():
        key, _, value = line.partition("=")
        if key:
            yield key, value


def _count(fields: dict[str, str], key: str, where: str = "header") -> int:
    try:
        return int(fields[key])
    except (KeyError, ValueError):
        raise ArtefactError(f"{where}: {key} must be an integer, got {fields.get(key)!r}") from None


def _numbers(fields: dict[str, str], key: str, dtype: type[np.number], count: int, where: str) -> np.ndarray:
    try:
        numbers = np.array(fields.get(key, "").split(), dtype=dtype)
    except (ValueError, OverflowError):
        raise ArtefactError(f"{where}: {key} must be numbers") from None
    if len(numbers) != count:
        raise ArtefactError(f"{where}: {key} must have {count} numbers, got {len(numbers)}")
    return numbers
