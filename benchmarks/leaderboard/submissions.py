"""Submissions of others: a folder each, with entry.json and one file of predictions per target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from benchmarks.results import load
from tilewise.errors import DataError
from tilewise.evaluate import PREDICTION_FORMATS
from tilewise.ops import Target

SUBMISSIONS = Path(__file__).parent / "submissions"
ENTRY = "entry.json"


@dataclass(frozen=True)
class Submission:
    """The metadata of a submission, all texts.

    Attributes:
        name: shown on the leaderboard.
        authors: persons or a team.
        date: of the selections, YYYY-MM-DD.
        link: to the code or a description; "" without one.
        learnt_from: the data that the selections come from; the holdout must not be among it.
    """

    name: str
    authors: str
    date: str
    link: str
    learnt_from: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder's metadata.

        Raises:
            DataError: the file is missing, lacks a key, or has another one or a value that is no text.
        """
        path = folder / ENTRY
        values, known = load(path), [f.name for f in fields(cls)]
        if sorted(values) != sorted(known):
            raise DataError(f"{path}: the keys must be {', '.join(known)}; got {', '.join(values)}")
        for name, value in values.items():
            if not isinstance(value, str) or "|" in value or "\n" in value:
                raise DataError(f"{path}: {name} must be a text of one line without |, got {value!r}")
        return cls(**values)


def submissions(target: Target, root: Path = SUBMISSIONS) -> Iterator[tuple[Submission, Path]]:
    """Yield each submission for a target with its file of predictions, in the order of the folders' names.

    Raises:
        DataError: a folder's metadata is damaged.
    """
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        submission = Submission.read(folder)
        for ending in PREDICTION_FORMATS:
            if (file := folder / f"{target.name}{ending}").exists():
                yield submission, file
