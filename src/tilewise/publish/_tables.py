"""Published tables: a parquet file per target with its split, checksums, and a card that explains them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from tilewise.data import (
    Column,
    TargetTable,
    measurement_columns,
    parquet_bytes,
)
from tilewise.data.quality import prepare_files, prepared_metadata
from tilewise.errors import DataError
from tilewise.files import replace_folder, write_bytes, write_text
from tilewise.markdown import fill, table
from tilewise.ops import OPS, Target

SPLIT = "split"
TRAIN, HOLDOUT = "train", "holdout"
CHECKSUMS, CARD, NOTICE = "SHA256SUMS", "README.md", "NOTICE.txt"


@dataclass(frozen=True)
class PublishedTable:
    """A table of the data set.

    Attributes:
        target: its target.
        n_rows, n_valid: all rows, and those with a valid measurement.
        n_train, n_holdout: problems with a valid measurement on either side of the split.
        n_kernels: kernels with a valid measurement.
        sha256: of the file, in hexadecimal digits.
    """

    target: Target
    n_rows: int
    n_valid: int
    n_train: int
    n_holdout: int
    n_kernels: int
    sha256: str

    @property
    def file(self) -> str:
        """Name of the file in the data set's folder."""
        return f"{self.target.name}.parquet"


def write_tables(
    source: Path, targets: Sequence[Target], holdout_fraction: float, folder: Path
) -> list[PublishedTable]:
    """Write the data set of some targets: tables, checksums, the card, and the notice beside the measurements.

    Args:
        source: a parquet file or a folder of them.
        targets: a table each.
        holdout_fraction: share of the split keys that is held out, see :func:`tilewise.data.held_out`.
        folder: a new folder, or an empty one.

    Raises:
        DataError: the folder has files already, or `source` lacks a target.
        OSError: the folder cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists already; published tables are never overwritten, choose another output")
    with replace_folder(folder) as scratch:
        published = [_write_table(source, target, holdout_fraction, scratch) for target in targets]
        sums = "".join(f"{t.sha256}  {t.file}\n" for t in published)
        write_text(scratch / CHECKSUMS, sums)
        write_text(scratch / CARD, _front_matter(published) + card(published, holdout_fraction))
        if (notice := source / NOTICE).exists():
            shutil.copyfile(notice, scratch / NOTICE)
    return published


def _write_table(source: Path, target: Target, fraction: float, folder: Path) -> PublishedTable:
    prepared = prepare_files(source, target)
    rows = TargetTable.of(prepared.frame, target)
    held = rows.is_holdout(fraction)
    frame = rows.rows.assign(**{SPLIT: np.where(held, HOLDOUT, TRAIN)})
    content = parquet_bytes(frame, prepared_metadata(prepared))
    write_bytes(folder / f"{target.name}.parquet", content)
    valid = rows.rows["is_valid"].to_numpy(dtype=bool)
    return PublishedTable(
        target=target,
        n_rows=len(frame),
        n_valid=int(valid.sum()),
        n_train=rows.take(valid & ~held).n_problems,
        n_holdout=rows.take(valid & held).n_problems,
        n_kernels=int(rows.rows.loc[valid, "kernel_name"].nunique()),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def card(published: Sequence[PublishedTable], holdout_fraction: float) -> str:
    """Return the card of a data set in Markdown, whose tables were split with a share of the keys held out."""
    header = ("target", "rows", "valid", "kernels", "train problems", "holdout problems")
    numbers = [(t.n_rows, t.n_valid, t.n_kernels, t.n_train, t.n_holdout) for t in published]
    rows = [[f"`{t.target.name}`", *(f"{n:,}" for n in row)] for t, row in zip(published, numbers, strict=True)]
    return card_of(table(header, rows), [t.target for t in published], holdout_fraction)


def card_of(tables: str, targets: Sequence[Target], holdout_fraction: float) -> str:
    """Return the card of a data set.

    Args:
        tables: a Markdown table of its tables.
        targets: their targets.
        holdout_fraction: share of the split keys that is held out.
    """
    described = [[f"`{c.name}`", c.kind, c.unit, c.meaning] for c in _shared_columns()]
    dimensions = "".join(
        f"- problem, `{op}`: {', '.join(f'`{name}`' for name in OPS[op].column_names())}\n"
        for op in dict.fromkeys(target.op for target in targets)
    )
    columns = (
        f"{dimensions}- kernel: `kernel_name`, and parameters that depend on the backend (tile sizes, warps, stages, "
        f"pipeline, ...)\n\nA problem column with its default in all rows (such as `layout`) is left out.\n\n"
        + table(("column", "type", "unit", "meaning"), described, words=4)
    )
    text = (files("tilewise.publish") / "dataset_card.md").read_text()
    return fill(text.replace("{fraction}", f"{holdout_fraction:g}"), {"tables": tables, "columns": columns})


def _shared_columns() -> Iterator[Column]:
    """Yield the columns that tables of all ops and backends have."""
    one_op, specific = next(iter(OPS)), ("kernel parameter", "unique name of the kernel")
    for column in measurement_columns(one_op):
        if column.name not in OPS[one_op].column_names() and not column.meaning.startswith(specific):
            yield column
    yield Column(SPLIT, "str", "", f"{TRAIN} or {HOLDOUT}")


def _front_matter(published: Sequence[PublishedTable]) -> str:
    """Return the metadata that hubs of data sets read."""
    configs = "".join(f"- {{config_name: {t.target.name}, data_files: {t.file}}}\n" for t in published)
    return (
        "---\nlicense: mit\npretty_name: tilewise, measured GPU kernels\ntask_categories: [tabular-regression]\n"
        f"tags: [gpu, autotuning, gemm, convolution, learning-to-rank]\nconfigs:\n{configs}---\n\n"
    )
