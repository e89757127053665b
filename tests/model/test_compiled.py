"""The cache of compiled forms: equal results without reading the trees; invalid files are replaced."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from small_model import write_model
from synthetic import CONV
from tilewise.core import compiled_core
from tilewise.errors import ArtefactError
from tilewise.model import TrainedModel, load_artefact
from tilewise.model import _compiled_model as compiled
from tilewise.ops import OPS, GroupedConvProblem

TARGETS = (CONV, "gemm_universal_fp8_sm90")
PROBLEM = GroupedConvProblem(N=8, C=64, K=128, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)

pytestmark = pytest.mark.skipif(compiled_core() is None, reason="the compiled core was not built: no C compiler")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / CONV)


@pytest.fixture
def kept(written: Path, tmp_path: Path) -> Path:
    """Return a folder with the compiled form of the model."""
    load_artefact(written, keep=tmp_path / "compiled")
    return tmp_path / "compiled"


def was_restored(model: TrainedModel) -> bool:
    """Return whether the trees have not been read."""
    return "scores" not in vars(model)


def only(folder: Path) -> Path:
    (file,) = folder.glob("*")
    return file


@pytest.mark.parametrize("target", TARGETS)
def test_a_restored_model_answers_alike(target: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / target, target=target)
    first, second = (load_artefact(folder, keep=tmp_path / "compiled") for _ in range(2))
    assert not was_restored(first)
    told = json.loads((folder / "selftest.json").read_text())["problems"]
    problems = [OPS[first.target.op].from_dict(t["problem"]) for t in told]
    assert [second.best(p, 5) for p in problems] == [first.best(p, 5) for p in problems]
    assert [second.score(p).tobytes() for p in problems] == [first.score(p).tobytes() for p in problems]
    assert second.content_hash == first.content_hash
    assert was_restored(second)


def test_a_restored_model_reads_its_trees_on_demand(written: Path, kept: Path) -> None:
    model, plain = load_artefact(written, keep=kept), load_artefact(written)
    assert was_restored(model)
    assert model.score(PROBLEM).tobytes() == plain.score(PROBLEM).tobytes()
    assert model.best(PROBLEM, 5) == plain.best(PROBLEM, 5)
    assert model.predict_tflops(PROBLEM).tobytes() == plain.predict_tflops(PROBLEM).tobytes()
    assert model.manifest == plain.manifest
    can = np.flatnonzero(plain.supported(PROBLEM))
    kernels = {name: column[can] for name, column in model.pool.columns.items()}
    scores = model.score_candidates(np.zeros_like(can), PROBLEM.to_dict(), kernels)
    assert scores.tobytes() == plain.score(PROBLEM)[can].tobytes()
    assert not was_restored(model)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_form_is_replaced(written: Path, kept: Path, data: st.DataObject) -> None:
    expected, file = load_artefact(written).score(PROBLEM), only(kept)
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.sampled_from(("cut", "change")))
    changed = whole[:at] if damage == "cut" else whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    file.write_bytes(changed)
    assert load_artefact(written, keep=kept).score(PROBLEM).tobytes() == expected.tobytes()
    file.write_bytes(whole)


def _write(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a form with a correct digest of its contents."""
    _signed(compiled.packed(arrays))(file)


def _another_model(file: Path) -> None:
    """Write a valid form of a model with other scores."""
    values = compiled.unpacked(memoryview(file.read_bytes())[32:])
    largest = max((n for n in values if values[n].dtype == np.float64), key=lambda n: values[n].size)
    values[largest] = values[largest][::-1].copy()
    _write(file, values)


def _a_pickle(file: Path) -> None:
    _write(file, {"layout": np.array([{"codes": print}], dtype=object)})


def _signed(data: bytes) -> Callable[[Path], object]:
    """Return a function that writes data with a valid digest."""
    return lambda file: file.write_bytes(hashlib.sha256(data).digest() + data)


def _form(**arrays: np.ndarray) -> Callable[[Path], object]:
    return _signed(compiled.packed(arrays))


def _headed(header: str) -> Callable[[Path], object]:
    """Return a function that writes a form with this header and 64 bytes."""
    return _signed(len(header).to_bytes(16, "little") + header.encode() + bytes(-len(header) % 16 + 64))


def _text(layout: str) -> np.ndarray:
    return np.frombuffer(layout.encode(), dtype=np.uint8)


DAMAGES = [
    _another_model, _a_pickle, lambda f: f.write_bytes(b""), lambda f: f.unlink(), _signed(b"no arrays"),
    _form(a=np.zeros(1)), _form(layout=_text("[" * 100_000)),
    _form(layout=_text('{"arrays": {"n_kernels": 1e400}, "codes": {}}'), used=np.zeros(1)),
    _form(layout=_text('{"arrays": null, "codes": []}'), used=np.zeros(1)),
    _headed('{"layout": ["<f8", [9]]}'), _headed('{"layout": ["<f8", [-1]]}'), _headed('{"layout": ["|O", [1]]}'),
    _headed('{"layout": ["<f8", 1.5]}'), _headed("[1]"), _headed('{"layout": ["<f8", [1e400]]}'),
    _signed((1 << 100).to_bytes(16, "little")),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_form_of_another_model_is_replaced(
    written: Path, kept: Path, damage: Callable[[Path], object]
) -> None:  # fmt: skip
    sound = only(kept).read_bytes()
    damage(only(kept))
    model = load_artefact(written, keep=kept)
    assert not was_restored(model)
    assert model.where == str(written)
    assert model.score(PROBLEM).tobytes() == load_artefact(written).score(PROBLEM).tobytes()
    assert only(kept).read_bytes() == sound
    assert was_restored(load_artefact(written, keep=kept))


def test_damage_of_the_model_is_seen_as_ever(written: Path, kept: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "copy"))
    trees = folder / "model_tflops.lgbm.gz"
    trees.write_bytes(gzip.compress(gzip.decompress(trees.read_bytes()) + b"\n"))
    with pytest.raises(ArtefactError, match=r"model_tflops\.lgbm\.gz is not the file that was written"):
        load_artefact(folder, keep=kept)


def test_changed_code_makes_another_form(written: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_code", lambda: "other")
    assert not was_restored(load_artefact(written, keep=kept))
    assert len(list(kept.glob("*.form"))) == 2


def test_a_folder_that_cannot_be_written_costs_nothing(written: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert load_artefact(written, keep=tmp_path / "file").score(PROBLEM).size


def test_those_unused_for_longest_go(written: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_KEPT", 2)
    for age in (1, 2, 3):
        (kept / f"{age}.form").touch()
        os.utime(kept / f"{age}.form", (0, 10**6 - age))
    only_kept = next(f for f in kept.glob("*-*.form"))
    os.utime(only_kept, (0, 0))
    assert was_restored(load_artefact(written, keep=kept))  # and so was used last
    monkeypatch.setattr(compiled, "_code", lambda: "other")
    load_artefact(written, keep=kept)
    assert {f.name for f in kept.iterdir()} == {only_kept.name, compiled.path(kept, _hash(written)).name}


def _hash(folder: Path) -> str:
    return load_artefact(folder).content_hash


def test_without_the_compiled_core_nothing_is_kept(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("TILEWISE_CORE", "numpy")
    load_artefact(written, keep=tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()
