"""Retries after write conflicts.

MLflow's stores check, then write, so one of two concurrent writers gets a database error.
"""

from __future__ import annotations

from collections.abc import Callable

_ATTEMPTS = 5


def retry_on_conflict(write: Callable[[], object]) -> None:
    """Call an idempotent `write`, and retry it after a conflict with another writer.

    Raises:
        MlflowException: Something else went wrong, or the conflicts do not end.
    """
    from mlflow.exceptions import MlflowException

    for _ in range(_ATTEMPTS - 1):
        try:
            write()
        except MlflowException as e:
            if e.error_code != "BAD_REQUEST":  # MLflow's code for a statement that its database refuses
                raise
        else:
            return
    write()
