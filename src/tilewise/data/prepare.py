"""From files as collected to a table to learn from: bad rows and doubtful labels go to quarantine with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from tilewise.arch import HardwareProfile, load_arch
from tilewise.data.columns import table_columns
from tilewise.data.rows import is_of
from tilewise.data.schema import SOURCE, row_faults, to_measurements
from tilewise.errors import DataError
from tilewise.ops import OPS, Target

ROOFLINE_SLACK = 1.02  # clocks may boost a little above the profile's
CONTRADICTION = 1.05  # two latencies of one run that differ by more cannot both be right
COLD_SPREAD = 3.0  # a median this far above the fastest sample timed something else than the kernel
COLD_REPEAT = 2.0  # a latency this far above what another run measured


@dataclass(frozen=True)
class Prepared:
    """A table to learn from, and what was kept out of it.

    Attributes:
        frame: good rows of one target, in the table's columns and types.
        quarantined: the other rows, with `reason` and, if known, `source_file` and `source_row`.
    """

    frame: pd.DataFrame
    quarantined: pd.DataFrame

    @property
    def quarantined_share(self) -> float:
        """Part of all rows that is in quarantine."""
        return len(self.quarantined) / (len(self.frame) + len(self.quarantined))


def prepare(frame: pd.DataFrame, target: Target) -> Prepared:
    """Split the rows of `target` into good ones and quarantined ones.

    Args:
        frame: from :func:`tilewise.data.schema.read_raw` or a measurement table; rows of other targets are ignored.
        target: what to prepare for.

    Raises:
        DataError: no row is of `target`, or none of its rows is good.
        ConfigError: the arch has no profile, or that no peak for the dtype.
    """
    rows = frame[is_of(frame, target)].reset_index(drop=True)
    if not len(rows):
        raise DataError(f"no row of {target.name} in a table of {len(frame)} rows")
    reasons = row_faults(rows)
    sound = rows[reasons == ""]
    if len(sound):
        labels = to_measurements(sound).set_index(sound.index)
        reasons.loc[sound.index] = label_faults(labels, target, load_arch(target.arch))
    good = reasons == ""
    if not good.any():
        raise DataError(f"all {len(rows)} rows of {target.name} are bad, the first because {reasons.iloc[0]}")
    kept = [c.name for c in table_columns(target.op, rows.columns)] + [n for n in SOURCE if n in rows.columns]
    quarantined = rows.loc[~good, kept].assign(reason=reasons[~good].astype("str"))
    return Prepared(to_measurements(rows[good]), quarantined.reset_index(drop=True))


def label_faults(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Why a row's label cannot be trusted, "" where it can; rules that compare rows, or rows with the hardware.

    Args:
        frame: rows without faults of their own, of one target.
        target: theirs.
        arch: gives the roofline.
    """
    checks: tuple[Callable[[pd.DataFrame, Target, HardwareProfile], pd.Series], ...] = (
        _above_peak,
        _above_bandwidth,
        _duplicates,
        _cold_samples,
        _cold_repeats,
    )
    faults = pd.Series("", index=frame.index, dtype=object)
    for check in checks:
        left = frame[faults == ""]
        faults.loc[left.index] = check(left, target, arch)
    return faults


def _above_peak(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    peak = arch.peak(target.dtype) * ROOFLINE_SLACK
    above = frame["tflops"] > peak
    return _reasons(
        above, frame["tflops"].map(lambda v: f"{v:.6g} TFLOPS is above the peak of {arch.name}, {peak:.6g}")
    )


def _above_bandwidth(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Only where every input byte must be read (no strides), and never what may have stayed in the L2."""
    strides = [n for n in OPS[target.op].column_names() if n.startswith("stride_")]
    whole = (frame[strides] == 1).all(axis=1)
    moved = frame["bandwidth_gb_s"] * frame["latency_ms"] * 1e6 - arch.l2_bytes
    limit = arch.dram_gb_s * ROOFLINE_SLACK
    needed = moved / frame["latency_ms"] / 1e6
    reason = needed.map(lambda v: f"needs {v:.6g} GB/s of memory, {arch.name} has {arch.dram_gb_s:.6g}")
    return _reasons(whole & (needed > limit), reason)


def _duplicates(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Rows of one problem and kernel in one run: agreeing ones are kept once, contradicting ones not at all."""
    key = [*OPS[target.op].column_names(), "kernel_name", "run_id"]
    rows = frame[frame.duplicated(key, keep=False)]
    reasons = pd.Series("", index=frame.index, dtype=object)
    if not len(rows):
        return reasons
    groups = rows.groupby(key, sort=False, dropna=False)
    latency = groups["latency_ms"]
    slower = latency.transform("max") / latency.transform("min")
    contradicts = (groups["status"].transform("nunique") > 1) | (slower > CONTRADICTION)
    reasons.loc[rows.index[contradicts]] = "contradicts another row of the same run, problem and kernel"
    repeated = rows.duplicated(key) & ~contradicts
    reasons.loc[rows.index[repeated]] = "repeats another row of the same run, problem and kernel"
    return reasons


def _cold_samples(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    spread = frame["latency_ms"] / frame["latency_min_ms"]
    reason = spread.map(lambda v: f"cold start: the median sample took {v:.3g} times the fastest")
    return _reasons(frame["is_valid"] & (spread > COLD_SPREAD), reason)


def _cold_repeats(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    valid = frame[frame["is_valid"]]
    fastest = valid.groupby([*OPS[target.op].column_names(), "kernel_name"])["latency_ms"].transform("min")
    ratio = (valid["latency_ms"] / fastest).reindex(frame.index)
    reason = ratio.map(lambda v: f"cold start: took {v:.3g} times what another run measured")
    return _reasons(ratio > COLD_REPEAT, reason)


def _reasons(bad: pd.Series, reason: pd.Series) -> pd.Series:
    return reason.astype(object).where(bad.fillna(False).astype(bool), "")
