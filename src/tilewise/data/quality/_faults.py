"""Rules that find untrustworthy labels; both preparing and merging use them.

A rule takes rows of one target and returns why faulty rows break it. Rules about a single row (types, impossible
problems, names that contradict their columns) come from :func:`tilewise.data._schema.row_faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tilewise._ahead import ahead
from tilewise.arch import HardwareProfile, load_arch
from tilewise.data._backends import backend_of_frame
from tilewise.data._columns import PROGRAMS_COLUMN
from tilewise.data._rows import problem_index, superseded, taken
from tilewise.data._schema import row_faults, to_measurements
from tilewise.data.quality._outliers import RelativeTimes, outliers
from tilewise.ops import OPS, Target, definition_of

ROOFLINE_SLACK = 1.02  # clocks may boost a little above the profile's
CONTRADICTION = 1.05  # two latencies of one run that differ by more cannot both be right
COLD_SPREAD = 3.0  # a median this far above the fastest sample did not time the kernel alone
COLD_REPEAT = 2.0  # a latency this far above another run's is a cold start

_READ = ("kernel_name", "run_id", "status", "is_valid", "latency_ms", "latency_min_ms", "repeats", "tflops",
         "bandwidth_gb_s", PROGRAMS_COLUMN)  # columns that the rules read, besides the problem's  # fmt: skip
_Check = Callable[[pd.DataFrame, "_Limits"], pd.Series]

REPEAT = "repeat"
SUPERSEDED = "superseded"
# Rows that break these rules need no decision: the table holds an equal row, a faster call, or one of today's programs.
HARMLESS = (REPEAT, SUPERSEDED)


def find_faults(chunks: Iterable[pd.DataFrame], target: Target) -> pd.DataFrame:
    """Return the first rule that each faulty row breaks, and why.

    Args:
        chunks: rows of `target` from :func:`tilewise.data.read_raw_measurements`, or of a measurement table. Each chunk
            holds whole problems; indices are unique among all chunks.
        target: target of all rows.

    Returns:
        Columns `rule` and `reason` of the faulty rows, indexed as in their chunks, ascending.

    Raises:
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    broken, times = list[pd.DataFrame](), list[RelativeTimes]()
    for rows in ahead(chunks):
        reasons = row_faults(rows).set_axis(rows.index)
        is_sound = (reasons == "").to_numpy()
        broken.append(_broken("row", reasons[~is_sound]))
        sound = taken(rows, is_sound)
        if len(sound):
            found, left = _faults_of_problems(
                to_measurements(sound, text="category").set_index(sound.index), target, load_arch(target.arch)
            )
            broken += found
            times += [RelativeTimes.of(left, target)] if len(left) else []
    broken.append(_broken("outlier", outliers(times)))
    return pd.concat(broken).sort_index()


def label_faults(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.DataFrame:
    """Apply the rules that compare rows with each other or with the hardware; see :func:`find_faults`.

    Args:
        frame: rows of one target that break no rule about a single row.
        target: target of all rows.
        arch: profile with the roofline.

    Returns:
        Columns `rule` and `reason`, "" for a good row; indexed like `frame`.
    """
    broken, left = _faults_of_problems(frame, target, arch)
    broken.append(_broken("outlier", outliers([RelativeTimes.of(left, target)] if len(left) else [])))
    return pd.concat(broken).reindex(frame.index, fill_value="")


def _faults_of_problems(
    frame: pd.DataFrame, target: Target, arch: HardwareProfile
) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Apply the rules that need no other problem; return the faults by rule, and the valid rows that are left."""
    strides = [n for n in OPS[target.op].column_names() if n.startswith("stride_")]
    left = frame[[*OPS[target.op].column_names(), *_READ]].assign(
        problem=problem_index(frame, target.op), is_dense=(frame[strides] == 1).all(axis=1)
    )
    lists_fastest, broken = backend_of_frame(frame).lists_fastest, list[pd.DataFrame]()
    for rule, check in _CHECKS.items():
        reasons = check(left, _Limits.of(target, arch, lists_fastest))
        broken.append(_broken(rule, reasons))
        left = left.drop(index=reasons.index) if len(reasons) else left
    return broken, taken(left, left["is_valid"].to_numpy())


def _broken(rule: str, reasons: pd.Series) -> pd.DataFrame:
    """Return rule and reason of faulty rows. Two checks find repeats as well."""
    rules = np.where(reasons.astype(str).str.startswith("repeats"), REPEAT, rule)
    return pd.DataFrame({"rule": rules, "reason": reasons}, index=reasons.index, dtype=object)


@dataclass(frozen=True)
class _Limits:
    """The hardware's limits for a target, and whether its tables list fast kernels only.

    Attributes:
        op: the target's op.
        arch: the hardware.
        peak_tflops: highest credible rate; None for an op of the user's own whose dtype has no known peak.
        lists_fastest: see :attr:`tilewise.kernels.Backend.lists_fastest`.
    """

    op: str
    arch: HardwareProfile
    peak_tflops: float | None
    lists_fastest: bool

    @classmethod
    def of(cls, target: Target, arch: HardwareProfile, lists_fastest: bool) -> _Limits:
        """Return the limits of a target."""
        unknown = definition_of(target.op) is not None and target.dtype not in arch.peak_tflops
        return cls(target.op, arch, None if unknown else arch.peak(target.dtype) * ROOFLINE_SLACK, lists_fastest)


def _superseded(frame: pd.DataFrame, limits: _Limits) -> pd.Series:
    late = pd.Series(superseded(frame, limits.op, ["problem"]), index=frame.index)
    version = frame[PROGRAMS_COLUMN].fillna(1)
    return _reasons(
        late, version, lambda v: f"superseded: version {v} of the programs, measured again with a later one"
    )


def _above_peak(frame: pd.DataFrame, limits: _Limits) -> pd.Series:
    rates, peak, name = frame["tflops"], limits.peak_tflops, limits.arch.name
    above = rates > (np.inf if peak is None else peak)
    return _reasons(above, rates, lambda v: f"{v:.6g} TFLOPS is above the peak of {name}, {peak:.6g}")


def _above_bandwidth(frame: pd.DataFrame, limits: _Limits) -> pd.Series:
    """Find rates above the memory's, for problems without strides, which read every input byte.

    Bytes that may have stayed in the L2 cache do not count.
    """
    arch = limits.arch
    moved = frame["bandwidth_gb_s"] * frame["latency_ms"] * 1e6 - arch.l2_bytes
    needed = moved / frame["latency_ms"] / 1e6
    above = frame["is_dense"] & (needed > arch.dram_gb_s * ROOFLINE_SLACK)
    return _reasons(above, needed, lambda v: f"needs {v:.6g} GB/s of memory, {arch.name} has {arch.dram_gb_s:.6g}")


def _duplicates(frame: pd.DataFrame, limits: _Limits) -> pd.Series:
    """Find repeats of a problem and kernel within a run: all of them if they contradict, all but the first if not."""
    key = ["problem", "kernel_name", "run_id"]
    rows = frame[frame.duplicated(key, keep=False)]
    reasons = pd.Series("", index=rows.index, dtype=object)
    if not len(rows):
        return reasons
    groups = rows.groupby(key, sort=False, dropna=False)
    latency = groups["latency_ms"]
    slower = latency.transform("max") / latency.transform("min")
    contradicts = (groups["status"].transform("nunique") > 1) | (slower > CONTRADICTION)
    reasons[contradicts] = "contradicts another row of the same run, problem and kernel"
    reasons[rows.duplicated(key) & ~contradicts] = "repeats another row of the same run, problem and kernel"
    return reasons[reasons != ""]


def _cold_samples(frame: pd.DataFrame, limits: _Limits) -> pd.Series:
    spread = frame["latency_ms"] / frame["latency_min_ms"]
    is_cold = frame["is_valid"] & (spread > COLD_SPREAD)
    return _reasons(is_cold, spread, lambda v: f"cold start: the median sample took {v:.3g} times the fastest")


def _cold_repeats(frame: pd.DataFrame, limits: _Limits) -> pd.Series:
    valid = frame[frame["is_valid"]]
    fastest = valid.groupby(["problem", "kernel_name"])["latency_ms"].transform("min")
    ratio = valid["latency_ms"] / fastest
    # The runs of a find database are ways of calling the same solver, as 2D or as 3D: the faster one counts.
    cause = "repeats a faster call" if limits.lists_fastest else "cold start"
    return _reasons(ratio > COLD_REPEAT, ratio, lambda v: f"{cause}: took {v:.3g} times what another run measured")


def _reasons(bad: pd.Series, values: pd.Series, reason: Callable[[float], str]) -> pd.Series:
    """Return the reason of each bad row, made of its value."""
    return values[bad.fillna(False).astype(bool).to_numpy()].astype(object).map(reason)


# In this order. RelativeTimes judges the rows that these leave, by all problems together.
_CHECKS: dict[str, _Check] = {
    SUPERSEDED: _superseded,  # first, as the other rules compare rows with each other
    "above_peak": _above_peak,
    "above_bandwidth": _above_bandwidth,
    "contradiction": _duplicates,
    "cold_samples": _cold_samples,
    "cold_repeat": _cold_repeats,
}
RULES = ("row", *_CHECKS, "outlier", REPEAT)
