"""Commands run inside this process, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _hydras_logging_goes() -> Iterator[None]:
    """Take back the logging that Hydra sets up: it writes to the output of its test, which is closed in the next."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in [name for name in root.manager.loggerDict if name.partition(".")[0] == "hydra"]:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.NOTSET)
