"""Hashes of a measurement table's content and of its group keys, independent of the files that hold them."""

from __future__ import annotations

import hashlib

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
    digest = hashlib.sha256(f"tilewise-table-1:{len(frame)}".encode())
    for name in frame.columns:
        values, empty = frame[name], frame[name].isna()
        digest.update(f"\n{name}:".encode())
        digest.update(np.packbits(empty.to_numpy()).tobytes())
        if pd.api.types.is_bool_dtype(values):
            digest.update(values.fillna(False).to_numpy(dtype="u1").tobytes())
        elif pd.api.types.is_integer_dtype(values):
            digest.update(values.fillna(0).to_numpy(dtype="<i8").tobytes())
        elif pd.api.types.is_numeric_dtype(values):
            digest.update(values.fillna(0).to_numpy(dtype="<f8").tobytes())
        else:
            text = "".join(f"{len(v)}:{v}" for v in values[~empty].astype(str))
            digest.update(text.encode())
    return digest.hexdigest()


def keys_digest(keys: npt.NDArray[np.int64]) -> str:
    """Return the SHA-256 of distinct, sorted group keys of shape (keys, dimensions)."""
    return hashlib.sha256(f"tilewise-keys-1:{len(keys)}:".encode() + keys.astype("<i8").tobytes()).hexdigest()
