"""A small real model and the table around it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from small_model import KERNELS, PROBLEMS, write_model
from synthetic import measurements
from tilewise.model import TrainedModel, load_artefact


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    folder: Path = write_model(tmp_path_factory.mktemp("model") / "m")
    return load_artefact(folder)


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    """Return the model's training problems, other problems, and repeats of some."""
    return measurements(n_problems=PROBLEMS + 20, n_kernels=KERNELS, repeats=8)
