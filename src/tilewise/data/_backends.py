"""The backend of a measurement table's kernels, and tables of several backends as one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tilewise.kernels import BACKEND_COLUMN, FILL, Backend, backend_of_columns, together


def tags_of(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the distinct backends that a table's rows name; none where the table has no such column."""
    return tuple(frame[BACKEND_COLUMN].dropna().astype(str).unique()) if BACKEND_COLUMN in frame else ()


def backend_of_frame(frame: pd.DataFrame) -> Backend:
    """Return the backend of a table's kernels; a mixture for those of several.

    Raises:
        ConfigError: a row names an unknown backend.
    """
    return backend_of_columns(frame.columns, tags_of(frame))


def unify(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return tables of one op with the kernel columns that all their backends have together.

    Rows get the name of their backend, and fill values in the columns that their kernels lack. Tables of one backend
    stay as they are.
    """
    backends = [backend_of_frame(frame) for frame in frames]
    if not frames:
        return []
    mixed = together(backends)
    return [widened(frame, known, mixed) for frame, known in zip(frames, backends, strict=True)]


def widened(frame: pd.DataFrame, known: Backend, mixed: Backend) -> pd.DataFrame:
    """Return a table of the backend `known` with the kernel columns of `mixed`, see :func:`unify`."""
    if not mixed.parts:
        return frame
    missing = {name: kind for name, kind in mixed.column_kinds().items() if name not in frame}
    return frame.assign(**{n: known.name if n == BACKEND_COLUMN else FILL[kind] for n, kind in missing.items()})
