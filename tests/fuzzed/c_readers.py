"""The readers in C for libFuzzer: the sources of each, and small valid files to begin with."""

from __future__ import annotations

from pathlib import Path

from small_model import with_pool, write_model
from tilewise.capi import export_model
from tilewise.capi._build import SOURCES
from tilewise.model import load_artefact
from tilewise.model._artefact_files import SCORES, unpack_text

ROOT = Path(__file__).parents[2]
TARGETS = ("gemm_universal_bf16_sm90", "grouped_conv_forward_bf16_sm90")
HARNESSES = {
    "model": [ROOT / "tests/capi/fuzz_model.c", *SOURCES],
    "text": [ROOT / "tests/core/fuzz_text.c", ROOT / "src/tilewise/core/text.c"],
}


def seed_corpus(name: str, folder: Path) -> None:
    """Write small valid files: models of three kernels, and the trees of models."""
    for target in TARGETS:
        path = write_model(folder.parent / target, trees=2, target=target)
        if name == "model":
            model = load_artefact(path)
            export_model(with_pool(model, model.pool.kernels[:3]), folder / target)
        else:
            text = unpack_text((path / SCORES).read_bytes())
            (folder / target).write_text(text[text.index("Tree=0") :])
