"""Functions for spawned processes, in a module with few imports, as the processes repeat them."""

from __future__ import annotations

from typing import Any

from tilewise.dispatch import Dispatcher, Switches
from tilewise.ops import Problem


def select_all(folder: str, problems: list[Problem], send: Any) -> None:
    """Put the names of the kernels that a model in a folder selects."""
    dispatcher = Dispatcher.from_folder(folder, switches=Switches())
    send.put([dispatcher.select(p).kernel_name for p in problems])
