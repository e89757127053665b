"""The files that DVC versions, read from the committed store: a fresh clone has not checked them out."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def content(md5: str) -> Path:
    """Return the place of a content in the committed store, or else in DVC's cache of files made here."""
    places = [ROOT / store / "files" / "md5" / md5[:2] / md5[2:] for store in ("dvc-store", ".dvc/cache")]
    return next((place for place in places if place.is_file()), places[0])


def data_file(name: str) -> Path:
    """Return the place of a file of ``data/``, by the current ``data.dvc``.

    Raises:
        KeyError: ``data/`` has no file of this name.
    """
    (folder,) = yaml.safe_load((ROOT / "data.dvc").read_text())["outs"]
    files = {file["relpath"]: file["md5"] for file in json.loads(content(folder["md5"]).read_text())}
    return content(files[name])
