"""Hashes of a measurement table's content and of its group keys, independent of the files that hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data._derived import without_implied
from tilewise.ops import OPS


def table_hash(frame: pd.DataFrame) -> str:
    """Return the SHA-256 of the columns' names and values, in order; equal tables hash alike on any machine.

    A later column of the op or the backend that holds only defaults is left out, so that a table keeps its hash when a
    version adds a column (:attr:`Problem.later_columns`, :attr:`Backend.later_columns`).
    """
    for op in set(frame["op"].astype(str)) & set(OPS) if "op" in frame else ():
        frame = without_implied(frame, op)
    digest = begin_digest(len(frame))
    for name in frame.columns:
        digest_column(digest, name, [frame[name]])
    return digest.hexdigest()


def begin_digest(n_rows: int) -> hashlib._Hash:
    """Return the digest of a table of so many rows and no column yet."""
    return hashlib.sha256(f"tilewise-table-1:{n_rows}".encode())


def digest_column(digest: hashlib._Hash, name: str, parts: Sequence[pd.Series]) -> None:
    """Add a column to a table's digest; its values come in parts of one type."""
    empty = [values.isna().to_numpy() for values in parts]
    digest.update(f"\n{name}:".encode())
    digest.update(np.packbits(np.concatenate(empty)).tobytes())
    for values, is_empty in zip(parts, empty, strict=True):
        if pd.api.types.is_bool_dtype(values):
            digest.update(values.fillna(False).to_numpy(dtype="u1").tobytes())
        elif pd.api.types.is_integer_dtype(values):
            digest.update(values.fillna(0).to_numpy(dtype="<i8").tobytes())
        elif pd.api.types.is_numeric_dtype(values):
            digest.update(values.fillna(0).to_numpy(dtype="<f8").tobytes())
        else:
            codes, distinct = pd.factorize(values[~is_empty].astype(str))
            texts = np.array([f"{len(v)}:{v}" for v in distinct], dtype=object)
            digest.update("".join(texts[codes].tolist()).encode())


def keys_digest(keys: npt.NDArray[np.int64]) -> str:
    """Return the SHA-256 of distinct, sorted group keys of shape (keys, dimensions)."""
    return hashlib.sha256(f"tilewise-keys-1:{len(keys)}:".encode() + keys.astype("<i8").tobytes()).hexdigest()
