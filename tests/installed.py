"""Check an installed tilewise that has the default dependencies only: ``python tests/installed.py [MODEL_FOLDER]``.

cibuildwheel runs it on each wheel, and ``test_wheel.py`` on one, with a model folder.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tilewise
from tilewise.capi import export_model
from tilewise.core import compiled_core
from tilewise.dispatch import Dispatcher
from tilewise.model import load_artefact

PROBLEM: dict[str, Any] = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 28, "Wi": 28, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1}
ABSENT = ("mlflow", "lightgbm", "dvc", "pandas", "pyarrow", "scipy", "sklearn", "matplotlib", "torch")


def main(folder: str = "") -> None:
    """Select from a shipped pool, then from the model in `folder`, and print the ranking."""
    assert "site-packages" in str(Path(tilewise.__file__)), f"the checkout is imported: {tilewise.__file__}"
    present = [name for name in ABSENT if find_spec(name)]
    assert not present, f"not needed by the runtime: {present}"
    assert compiled_core(), "the wheel has no compiled core"
    with Dispatcher.from_pool("grouped_conv_forward_bf16_sm90") as dispatcher:
        assert dispatcher.select(PROBLEM).kernel_name
    if folder:
        with Dispatcher.from_folder(folder) as dispatcher, TemporaryDirectory() as scratch:
            print("\n".join(s.kernel_name for s in dispatcher.rank(PROBLEM, 5)))
            export_model(load_artefact(folder), Path(scratch) / "model.twm")


if __name__ == "__main__":
    main(*sys.argv[1:2])
