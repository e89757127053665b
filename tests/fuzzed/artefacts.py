"""The files of a trained model under fuzz: each JSON file, the packed ones, tree texts, and the compiled form."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fuzzed.contract import Outcome, Reader, refused
from small_model import write_model
from synthetic import CONV, problems
from tilewise.errors import ArtefactError
from tilewise.model import TrainedModel, load_artefact
from tilewise.model import _artefact as artefact
from tilewise.model import _artefact_files as files
from tilewise.model import _compiled_model as compiled_model
from tilewise.model._selftest import verify_digests, verify_selftest
from tilewise.model._trees import Ensemble
from tilewise.ops import Target

_PROBLEMS = problems(Target.parse(CONV), 3)
_TREES = 6


@cache
def model_files() -> dict[str, bytes]:
    """Return the files of a small model."""
    with tempfile.TemporaryDirectory() as folder:
        return files.read_files(write_model(Path(folder) / "model", trees=_TREES))


def _unpacked(name: str) -> bytes:
    data = model_files()[name]
    return files.unpack_text(data).encode() if name.endswith(".gz") else data


def _reader_of(name: str) -> Reader:
    """Return the reader of one file of a model, whose digest a hostile author has made right again."""

    def read(content: bytes, folder: Path) -> Outcome:
        changed = model_files() | {name: _packed(content) if name.endswith(".gz") else content}
        try:
            model = _loaded(_resealed(changed, name), str(folder))
        except ArtefactError as e:
            return refused(e, str(folder))
        _use(model)
        return "read"

    return Reader(lambda: _unpacked(name), read, lines=None if "lgbm" in name else False)


def _packed(content: bytes) -> bytes:
    import gzip

    return gzip.compress(content, 1, mtime=0)


def _resealed(changed: dict[str, bytes], name: str) -> dict[str, bytes]:
    if name == files.SELFTEST:
        return changed
    selftest = json.loads(changed[files.SELFTEST])
    selftest["files"][name] = hashlib.sha256(changed[name]).hexdigest()
    return changed | {files.SELFTEST: json.dumps(selftest).encode()}


def _loaded(changed: dict[str, bytes], where: str) -> TrainedModel:
    """Load a model from memory by the steps of :func:`tilewise.model.load_artefact`."""
    verify_digests(changed, where)
    model = artefact._build(changed, where)
    model.read_all()
    verify_selftest(model)
    return model


def _use(model: TrainedModel) -> None:
    for problem in _PROBLEMS:
        order = list(model.rank(problem))
        assert len(set(order)) == len(order)
        assert all(0 <= i < len(model.pool) for i in order)
    artefact.parts_of(model)


def _read_trees(content: bytes, folder: Path) -> Outcome:
    """Read trees by the core and by NumPy: both refuse, or both give the same finite scores."""
    text = content.decode(errors="replace")
    try:
        trees = Ensemble.from_text(text)
    except ArtefactError as e:
        return refused(e, "")
    rows = np.linspace(-3, 3, 4 * trees.n_features).reshape(4, -1) if trees.n_features else np.zeros((4, 0))
    if trees.n_features < 1000 and trees.n_trees:
        assert trees.predict(rows).shape == (4,)
    return "read"


@dataclass(frozen=True)
class _Kept:
    """A model with its compiled form as arrays."""

    folder: Path
    data: bytes


@cache
def _kept() -> _Kept:
    folder = Path(tempfile.mkdtemp())
    model = load_artefact(write_model(folder / "model", trees=_TREES), keep=folder / "forms")
    (entry,) = (folder / "forms").iterdir()
    assert entry == compiled_model.path(folder / "forms", model.content_hash)
    return _Kept(folder, entry.read_bytes()[32:])


def _read_compiled(content: bytes, folder: Path) -> Outcome:
    """Start from a compiled form with wrong arrays and the right digest: the model is compiled again."""
    entry = compiled_model.path(folder, load_artefact(_kept().folder / "model", verify=False).content_hash)
    entry.write_bytes(hashlib.sha256(content).digest() + content)
    model = load_artefact(_kept().folder / "model", keep=folder)
    _use(model)
    return "read"


READERS = {
    **{
        name.partition(".")[0]: _reader_of(name)
        for name in (files.SPEC, files.POOL, files.SELFTEST, files.MANIFEST, files.METRICS, files.IMPORTANCES)
    },
    "cost_model": _reader_of(files.COST_MODEL),
    "scores": _reader_of(files.SCORES),
    "trees": Reader(lambda: _unpacked(files.SCORES), _read_trees),
    "compiled": Reader(lambda: _kept().data, _read_compiled),
}
