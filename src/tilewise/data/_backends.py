"""The backend of a measurement table's kernels, and tables of several backends as one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tilewise.data._text import stacked
from tilewise.kernels import BACKEND_COLUMN, FILL, Backend, backend_of_columns, together


def tags_of(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the distinct backends that a table's rows name; none where the table has no such column."""
    return tuple(map(str, frame[BACKEND_COLUMN].dropna().unique())) if BACKEND_COLUMN in frame else ()


def backend_of_frame(frame: pd.DataFrame) -> Backend:
    """Return the backend of a table's kernels; a mixture for those of several.

    Raises:
        ConfigError: a row names an unknown backend.
    """
    return backend_of_columns(frame.columns, tags_of(frame))


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables of one op as one, with the kernel columns that all their backends have together.

    Rows get the name of their backend, and fill values in the columns that their kernels lack.
    """
    backends = [backend_of_frame(frame) for frame in frames]
    mixed = together(backends)
    return stacked([widened(frame, known, mixed) for frame, known in zip(frames, backends, strict=True)])


def widened(frame: pd.DataFrame, known: Backend, mixed: Backend) -> pd.DataFrame:
    """Return a table of the backend `known` with the kernel columns of `mixed`, see :func:`joined`."""
    if not mixed.parts:
        return frame
    missing = {name: kind for name, kind in mixed.column_kinds().items() if name not in frame}
    return frame.assign(**{n: known.name if n == BACKEND_COLUMN else FILL[kind] for n, kind in missing.items()})
