"""A model's folder that is replaced while it is read gives one model or the other, never an error about a mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from small_model import write_model
from tilewise.errors import ArtefactError
from tilewise.files import replace_folder
from tilewise.model import TrainedModel, load_artefact, write_files
from tilewise.model import _artefact_files as artefact_files


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[TrainedModel]:
    root = tmp_path_factory.mktemp("models")
    return [load_artefact(write_model(root / note, trees=10, note=note)) for note in ("old", "new")]


def _replace(folder: Path, model: TrainedModel) -> None:
    with replace_folder(folder) as fresh:
        write_files(fresh, model.files)


@pytest.mark.parametrize("at", [artefact_files.SCORES, artefact_files.MANIFEST, artefact_files.IMPORTANCES])
def test_it_is_read_once_more(
    models: list[TrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    old, new = models
    _replace(tmp_path / "live", old)
    opened, real = list[str](), Path.open

    def replace_first(path: Path, *args: Any, **named: Any) -> Any:
        if path.name == at and path.parent.name == "live" and at not in opened:
            opened.append(at)
            _replace(tmp_path / "live", new)
        return real(path, *args, **named)

    monkeypatch.setattr(Path, "open", replace_first)
    assert load_artefact(tmp_path / "live").content_hash == new.content_hash


def test_a_folder_that_stays_incomplete_is_an_error(models: list[TrainedModel], tmp_path: Path) -> None:
    _replace(tmp_path / "live", models[0])
    (tmp_path / "live" / artefact_files.POOL).unlink()
    with pytest.raises(ArtefactError, match=r"pool\.json: missing, the model is incomplete"):
        load_artefact(tmp_path / "live")
