"""MLflow's stores look, and then insert or update: of two who find the same, the database refuses the later one."""

from __future__ import annotations

from collections.abc import Callable

_ATTEMPTS = 5


def again_if_overtaken(write: Callable[[], object]) -> None:
    """Write what is the same however often it is written; who was refused because of another looks again.

    Raises:
        MlflowException: anything else went wrong, or there is no end to the others.
    """
    from mlflow.exceptions import MlflowException

    for _ in range(_ATTEMPTS - 1):
        try:
            write()
        except MlflowException as e:
            if e.error_code != "BAD_REQUEST":  # what MLflow makes of a statement that its database refuses
                raise
        else:
            return
    write()
