"""The registry of pipelines is complete and light, and no code outside a backend's package compares its name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewise.kernels import BACKENDS
from tilewise.kernels.triton import PIPELINES
from tilewise.ops import OPS

SRC = Path(__file__).parents[2] / "src" / "tilewise"


def test_numbers_are_unique_among_all_backends() -> None:
    backends = [load() for load in BACKENDS.values()]
    numbers = {(b.name, name): number for b in backends for op in OPS for name, number in b.pipelines(op).items()}
    assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize("name", PIPELINES)
def test_each_pipeline_has_programs_for_its_variants(name: str) -> None:
    pytest.importorskip("triton")
    from tilewise.kernels.triton.pipelines import implementation_of

    for op, variant in PIPELINES[name].variants:
        assert implementation_of(PIPELINES[name], op, variant).programs is not None


def test_the_registry_does_not_import_triton() -> None:
    source = (
        "import sys; import tilewise.kernels.triton.pipelines; print({'triton', 'torch', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_no_code_compares_the_name_of_a_backend() -> None:
    compares = re.compile(rf"[!=]= ['\"]({'|'.join(BACKENDS)})['\"]|['\"]({'|'.join(BACKENDS)})['\"] [!=]=")
    files = [f for f in SRC.rglob("*.py") if not {"triton", "ck"} & set(f.relative_to(SRC).parts)]
    assert [f"{f}: {line}" for f in files for line in f.read_text().splitlines() if compares.search(line)] == []
