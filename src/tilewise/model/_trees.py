"""LightGBM's text models in NumPy: read and evaluated without LightGBM, whose import takes longer than loading a model.

Scores equal ``Booster.predict(raw_score=True)`` bit for bit: the same comparisons, and leaf values added tree by tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tilewise.core import compiled_core
from tilewise.errors import ArtefactError
from tilewise.metrics import Floats, Ints

_ZERO = float(np.float32(1e-35))  # LightGBM treats smaller magnitudes as 0
_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of decision_type; bits 2 and 3 have the missing value
_MISSING_ZERO, _MISSING_NAN = 1, 2
_CHUNK = 1 << 15  # rows x trees traversed at a time, so that their state stays in the cache
_MANY = 4096  # rows from which a table is traversed tree by tree
_VERSIONS = ("v3", "v4")
_MAX_HEADER, _MAX_LINES = 1 << 20, 1 << 21  # characters before the first tree, and lines in all (20 per tree)
_MAX_LEAVES, _MAX_DEPTH = 1 << 20, 4096  # of a tree, as in core/text.c; deep chains of splits take long to traverse
_MAX_DIGITS = 32  # characters of a number and its space
_NOT_LINEAR = re.compile("-?0{1,10}")  # an integer of 0, as core/text.c reads it
_FIRST_TREE = re.compile(r"^Tree=\d+$", re.MULTILINE)


@dataclass(frozen=True)
class Ensemble:
    """The trees of a model, their nodes in one list; immutable, safe to share between threads.

    A leaf is its own child on both sides, so that a traversal may continue past it.
    """

    feature_names: tuple[str, ...]
    roots: Ints  # int64, (trees,): the first node of each tree
    feature: Ints  # int64, (nodes,): the column compared; 0 for leaves
    threshold: Floats  # float64, (nodes,): left where value <= threshold
    children: Ints  # int64, (2 nodes,): right, left of node i at 2 i, 2 i + 1
    missing: npt.NDArray[np.int8]  # (nodes,): 0 nothing, 1 zero, 2 NaN counts as missing
    default_left: npt.NDArray[np.bool_]  # (nodes,): True if missing values go left
    value: Floats  # float64, (nodes,): score of a leaf; 0 for splits
    depth: int  # most splits on a path from a root to a leaf

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.roots)

    @property
    def n_features(self) -> int:
        """Number of columns of the matrix that :meth:`predict` takes."""
        return len(self.feature_names)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read LightGBM's text model (``Booster.model_to_string``): one score per row, numerical splits.

        Raises:
            ArtefactError: the text is damaged, or uses categorical splits, linear trees, several classes or averaged
                forests, which are not supported.
        """
        first = _FIRST_TREE.search(text)
        if first is not None and first.start() > _MAX_HEADER:
            raise ArtefactError(f"the header must have at most {_MAX_HEADER} characters, got {first.start()}")
        if (lines := text.count("\n")) > _MAX_LINES:
            raise ArtefactError(f"a model must have at most {_MAX_LINES} lines, got {lines}; train fewer trees")
        compiled = _compiled(text)
        header, trees = (compiled.header, []) if compiled else _sections(text)
        names = tuple(header.get("feature_names", "").split())
        if header.get("version") not in _VERSIONS:
            raise ArtefactError(
                f"LightGBM models must have version {' or '.join(_VERSIONS)}, got {header.get('version')!r}"
            )
        if header.get("num_tree_per_iteration") != "1" or "average_output" in header:
            raise ArtefactError("a model must give one score per row, the sum of its trees")
        if len(names) != _count(header, "max_feature_idx") + 1:
            raise ArtefactError(f"max_feature_idx is {header['max_feature_idx']}, but {len(names)} features are named")
        if compiled:
            return cls(names, *compiled[1:])
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

    def predict(self, matrix: Floats) -> Floats:
        """Return the raw scores of rows.

        Args:
            matrix: float64, (rows, n_features); NaN stands for a missing value.

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
            # accumulate adds tree by tree, as LightGBM does; sum would add in pairs
            scores[start : start + step] = np.add.accumulate(values, axis=0)[-1]
        return scores

    def directions(self, row: Floats) -> npt.NDArray[np.bool_]:
        """Return whether each split sends a row of features left: bool, (nodes,)."""
        return self._goes_left(np.asarray(row, dtype=np.float64)[self.feature], np.arange(len(self.feature)))

    def _predict_many(self, matrix: Floats) -> Floats:
        """Return the scores of a large table, with the same bits as the other traversal.

        Each tree splits the list of rows at its nodes. Rows that reached a leaf cost nothing more, and columns are read
        in the order of the rows.
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

    def _leaves(self, matrix: Floats, plain: bool) -> Ints:
        """Return the leaf of each (tree, row), flattened tree by tree. `plain`: no value counts as missing."""
        values = matrix.ravel()
        row = np.tile(np.arange(len(matrix)) * self.n_features, self.n_trees)  # index in `values` of each row
        node = np.repeat(self.roots, len(matrix))
        for _ in range(self.depth):
            x = values[row + self.feature[node]]
            left: npt.NDArray[np.bool_] = x <= self.threshold[node] if plain else self._goes_left(x, node)
            node = self.children[2 * node + left]
        return node

    def _goes_left(self, x: Floats, node: Ints) -> npt.NDArray[np.bool_]:
        kind, nan = self.missing[node], np.isnan(x)
        x = np.where(nan & (kind != _MISSING_NAN), 0.0, x)
        missing = ((kind == _MISSING_NAN) & nan) | ((kind == _MISSING_ZERO) & (np.abs(x) <= _ZERO))
        left: npt.NDArray[np.bool_] = np.where(missing, self.default_left[node], x <= self.threshold[node])
        return left


class _CompiledText(NamedTuple):
    """The result of the compiled reader: the header, and the members of :class:`Ensemble` after its names."""

    header: dict[str, str]
    roots: Ints
    feature: Ints
    threshold: Floats
    children: Ints
    missing: npt.NDArray[np.int8]
    default_left: npt.NDArray[np.bool_]
    value: Floats
    depth: int


def _compiled(text: str) -> _CompiledText | None:
    """Read a text with the compiled core, in a tenth of the time; None without a core or for unusual text."""
    core, first = compiled_core(), _FIRST_TREE.search(text)
    if core is None or first is None or not text.startswith("tree\n"):
        return None
    header = dict(_pairs(text[: first.start()]))
    found = core.parse_trees(text, first.start(), len(header.get("feature_names", "").split()))
    if found is None or len(header.get("tree_sizes", "").split()) != len(found[0]) // 8:
        return None
    roots, feature, threshold, children, missing, default_left, value, depth = found
    return _CompiledText(
        header,
        np.frombuffer(roots, np.int64),
        np.frombuffer(feature, np.int64),
        np.frombuffer(threshold, np.float64),
        np.frombuffer(children, np.int64),
        np.frombuffer(missing, np.int8),
        np.frombuffer(default_left, np.bool_),
        np.frombuffer(value, np.float64),
        depth,
    )


@dataclass(frozen=True)
class _Tree:
    """One tree, with the arrays of :class:`Ensemble`; children are numbered within the tree."""

    feature: Ints
    threshold: Floats
    children: Ints
    missing: npt.NDArray[np.int8]
    default_left: npt.NDArray[np.bool_]
    value: Floats
    depth: int


def _tree(fields: dict[str, str], n_features: int, where: str) -> _Tree:
    """Return one tree: splits first, then leaves, as LightGBM numbers them."""
    leaves = _count(fields, "num_leaves", where)
    splits = leaves - 1
    if leaves > _MAX_LEAVES:
        raise ArtefactError(f"{where}: num_leaves must be at most {_MAX_LEAVES}, got {leaves}")
    if not _NOT_LINEAR.fullmatch(fields.get("is_linear", "0")):
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
    # if each child comes after its only parent, every traversal ends in a leaf
    numbers = np.arange(splits)
    both = np.concatenate([left, right])
    if (both <= np.concatenate([numbers, numbers])).any() or sorted(both.tolist()) != list(range(1, splits + leaves)):
        raise ArtefactError(f"{where}: its nodes do not form a tree")
    depth = np.zeros(splits + leaves, dtype=np.int64)
    for node in range(splits):
        depth[left[node]] = depth[right[node]] = depth[node] + 1
    if depth.max() > _MAX_DEPTH:
        raise ArtefactError(
            f"{where}: a path must have at most {_MAX_DEPTH} splits, got {depth.max()}; train with a smaller max_depth"
        )
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
    """Return header and trees, each as key -> value, without the sections after ``end of trees``."""
    body, end, _ = text.partition("\nend of trees")
    if not text.startswith("tree\n") or not end:
        raise ArtefactError("a LightGBM text model begins with 'tree' and has a line 'end of trees'; fetch it again")
    header, *trees = re.split(r"^Tree=\d+$", body, flags=re.MULTILINE)
    fields = dict(_pairs(header))
    if "tree_sizes" in fields and len(fields["tree_sizes"].split()) != len(trees):
        raise ArtefactError(
            f"{len(fields['tree_sizes'].split())} trees are announced, {len(trees)} found; fetch the model again"
        )
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
    text = fields.get(key, "")
    if len(text) > _MAX_DIGITS * (abs(count) + 32):  # splitting it would take far more memory than the text
        raise ArtefactError(f"{where}: {key} must have {count} numbers, got a text of {len(text)} characters")
    try:
        numbers = np.array(text.split(), dtype=dtype)
    except (ValueError, OverflowError):
        raise ArtefactError(f"{where}: {key} must be numbers") from None
    if len(numbers) != count:
        raise ArtefactError(f"{where}: {key} must have {count} numbers, got {len(numbers)}")
    return numbers
