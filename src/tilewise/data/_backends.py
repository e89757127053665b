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
    if not frames or not (mixed := together(backends)).parts:
        return list(frames)
    kinds = mixed.column_kinds()
    return [
        frame.assign(
            **{
                column: known.name if column == BACKEND_COLUMN else FILL[kind]
                for column, kind in kinds.items()
                if column not in frame
            }
        )
        for frame, known in zip(frames, backends, strict=True)
    ]
