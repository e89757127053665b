"""Commands run inside this process, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hydra.core.hydra_config import HydraConfig


@pytest.fixture(autouse=True)
def _hydras_state_goes() -> Iterator[None]:
    """Take back Hydra's state: a later command would seem to be its job, and write to a closed output."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    HydraConfig.instance().cfg = None
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in [name for name in root.manager.loggerDict if name.partition(".")[0] == "hydra"]:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.NOTSET)
