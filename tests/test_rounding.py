"""Every command rounds like the machine that made the recorded models."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from alone import run_alone
from tilewise import _rounding
from tilewise._rounding import VARIABLE, round_as_recorded


@pytest.mark.parametrize(("flags", "stated", "used"), [
    ("flags : fma avx2 avx512f", None, "Haswell"),
    ("flags : fma avx2 avx512f", "SkylakeX", "SkylakeX"),
    ("flags : fma avx", None, None),
    ("Features : asimd sve", None, None),
    (None, None, None),
])  # fmt: skip
def test_kernels_for_avx2_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None, stated: str | None, used: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(f"{flags} \n") if flags else None
    monkeypatch.setattr(_rounding, "_PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.delenv(VARIABLE, raising=False)
    if stated:
        monkeypatch.setenv(VARIABLE, stated)
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    round_as_recorded()
    assert os.environ.get(VARIABLE) == used


def test_a_process_that_has_loaded_numpy_starts_others_that_round_alike() -> None:
    run_alone("""
import numpy, os
before = dict(os.environ)
import tilewise.cli
assert dict(os.environ) == before
""")


def test_numpy_is_not_loaded_before() -> None:
    run_alone("""
import sys
import tilewise.cli
import tilewise.cluster.__main__
assert not {"numpy", "pandas", "scipy"} & set(sys.modules)
""")
