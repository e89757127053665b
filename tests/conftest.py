"""The conditions of every test: one thread per worker, its own stores, no deadline, no GPU tests without a GPU."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before LightGBM loads: xdist already fills the cores

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a loaded machine is no fault of the code
settings.load_profile("untimed")


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


if not _has_cuda():  # Triton's interpreter runs the kernels; it must be chosen before anything imports triton
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _no_store_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests out of the caches, stores and settings of whoever runs them."""
    ours = {name for name in os.environ if name.startswith("TILEWISE_")} - {"TILEWISE_CORE"}  # which core is tested
    for name in (*ours, "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "tilewise-cache"))
    monkeypatch.setenv("TILEWISE_MEASURE", "off")  # a GPU is for the tests that ask for it
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_library_of_the_test_before() -> Iterator[None]:
    """Kernel libraries stay open as long as a process; another test may mean another model behind the same file."""
    yield
    if opened := sys.modules.get("tilewise.kernels.ck.libraries._library"):
        opened.close_all()
