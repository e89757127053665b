"""The compiled form that is kept: the same answers without reading the trees, and never believed when it is wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
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
from tilewise.model import compiled, load_artefact
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, GroupedConvProblem

TARGETS = (CONV, "gemm_universal_fp8_sm90")
PROBLEM = GroupedConvProblem(N=8, C=64, K=128, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)

pytestmark = pytest.mark.skipif(compiled_core() is None, reason="the compiled core was not built: no C compiler")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / CONV)


@pytest.fixture
def kept(written: Path, tmp_path: Path) -> Path:
    """A folder with the compiled form of the model."""
    load_artefact(written, keep=tmp_path / "compiled")
    return tmp_path / "compiled"


def was_restored(model: TrainedModel) -> bool:
    """Whether the trees were never read."""
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


def test_what_is_asked_of_the_trees_is_read_then(written: Path, kept: Path) -> None:
    model, plain = load_artefact(written, keep=kept), load_artefact(written)
    assert was_restored(model)
    assert model.score(PROBLEM).tobytes() == plain.score(PROBLEM).tobytes()
    assert model.best(PROBLEM, 5) == plain.best(PROBLEM, 5)
    assert model.predict_tflops(PROBLEM).tobytes() == plain.predict_tflops(PROBLEM).tobytes()
    assert model.manifest == plain.manifest
    rows = model.score_rows(PROBLEM.to_dict(), model.pool.columns)
    assert np.where(plain.supported(PROBLEM), rows, -np.inf).tobytes() == plain.score(PROBLEM).tobytes()
    assert not was_restored(model)


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_form_is_made_anew(written: Path, kept: Path, data: st.DataObject) -> None:
    expected, file = load_artefact(written).score(PROBLEM), only(kept)
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.sampled_from(("cut", "change")))
    changed = whole[:at] if damage == "cut" else whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    file.write_bytes(changed)
    assert load_artefact(written, keep=kept).score(PROBLEM).tobytes() == expected.tobytes()
    file.write_bytes(whole)


def _write(file: Path, **arrays: np.ndarray) -> None:
    """A file with a digest that is right, whatever is in it."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    file.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())


def _another_model(file: Path) -> None:
    """Sound in itself, and of a model that scores otherwise."""
    with np.load(io.BytesIO(file.read_bytes()[32:])) as arrays:
        values = dict(arrays)
    largest = max((n for n in values if values[n].dtype == np.float64), key=lambda n: values[n].size)
    values[largest] = values[largest][::-1].copy()
    _write(file, **values)


def _a_pickle(file: Path) -> None:
    _write(file, layout=np.array([{"codes": print}], dtype=object))


@pytest.mark.parametrize("damage", [_another_model, _a_pickle, lambda f: f.write_bytes(b""), lambda f: f.unlink()])
def test_a_form_that_is_not_the_models_is_made_anew(
    written: Path, kept: Path, damage: Callable[[Path], object]
) -> None:  # fmt: skip
    sound = only(kept).read_bytes()
    damage(only(kept))
    model = load_artefact(written, keep=kept)
    assert not was_restored(model)
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
