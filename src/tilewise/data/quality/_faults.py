"""Rules that find untrustworthy labels; both preparing and merging use them.

A rule takes rows of one target and returns why each row breaks it. Rules about a single row (types, impossible
problems, names that contradict their columns) come from :func:`tilewise.data._schema.row_faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.arch import HardwareProfile, load_arch
from tilewise.data._backends import backend_of_frame
from tilewise.data._schema import row_faults, to_measurements
from tilewise.ops import OPS, Target, definition_of

ROOFLINE_SLACK = 1.02  # clocks may boost a little above the profile's
CONTRADICTION = 1.05  # two latencies of one run that differ by more cannot both be right
COLD_SPREAD = 3.0  # a median this far above the fastest sample did not time the kernel alone
COLD_REPEAT = 2.0  # a latency this far above another run's is a cold start

# A kernel's relative time is its latency / the median of its problem. An outlier's relative time is off by the first
# factor from the kernel's usual one, and by the second from the extremes on the most similar problems. If a row's own
# samples agree with each other, both factors are larger: some kernels are ten times slower on one shape than on all
# similar ones.
OUTLIER, OUTLIER_AMONG_SIMILAR = 5.0, 3.0
SAMPLED_OUTLIER, SAMPLED_OUTLIER_AMONG_SIMILAR = 20.0, 20.0
SAMPLES_AGREE = 1.5  # median / fastest
SIMILAR = 8  # problems
OUTLIER_MIN_KERNELS, OUTLIER_MIN_PROBLEMS = 4, 5  # fewer do not show the usual time

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Check = Callable[[pd.DataFrame, Target, HardwareProfile], pd.Series]

HARMLESS = "repeat"  # rows that break this rule need no decision: the table holds an equal row, or a faster call


def find_faults(rows: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return the first rule that each row breaks, and why.

    Args:
        rows: rows of `target` from :func:`tilewise.data.read_raw_measurements`, or a measurement table, with a unique
            index.
        target: target of all rows.

    Returns:
        Columns `rule` and `reason`, "" for a good row; indexed like `rows`.

    Raises:
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    reasons = row_faults(rows).set_axis(rows.index)
    faults = pd.DataFrame(
        {"rule": np.where(reasons != "", "row", ""), "reason": reasons}, index=rows.index, dtype=object
    )
    sound = rows[reasons == ""]
    if len(sound):
        faults.loc[sound.index] = label_faults(
            to_measurements(sound).set_index(sound.index), target, load_arch(target.arch)
        )
    return faults


def label_faults(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.DataFrame:
    """Apply the rules that compare rows with each other or with the hardware; see :func:`find_faults`.

    Args:
        frame: rows of one target that break no rule about a single row.
        target: target of all rows.
        arch: profile with the roofline.
    """
    faults = pd.DataFrame({"rule": "", "reason": ""}, index=frame.index, dtype=object)
    for rule, check in _CHECKS.items():
        left = frame[faults["rule"] == ""]
        reasons = check(left, target, arch)
        broken = reasons[reasons != ""]
        # Two checks find repeats as well.
        faults.loc[broken.index, "rule"] = np.where(broken.str.startswith("repeats"), HARMLESS, rule)
        faults.loc[broken.index, "reason"] = broken
    return faults


def _above_peak(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    if definition_of(target.op) is not None and target.dtype not in arch.peak_tflops:
        return pd.Series("", index=frame.index, dtype=object)
    peak = arch.peak(target.dtype) * ROOFLINE_SLACK
    above = frame["tflops"] > peak
    return _reasons(
        above, frame["tflops"].map(lambda v: f"{v:.6g} TFLOPS is above the peak of {arch.name}, {peak:.6g}")
    )


def _above_bandwidth(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Find rates above the memory's, for problems without strides, which read every input byte.

    Bytes that may have stayed in the L2 cache do not count.
    """
    strides = [n for n in OPS[target.op].column_names() if n.startswith("stride_")]
    is_dense = (frame[strides] == 1).all(axis=1)
    moved = frame["bandwidth_gb_s"] * frame["latency_ms"] * 1e6 - arch.l2_bytes
    limit = arch.dram_gb_s * ROOFLINE_SLACK
    needed = moved / frame["latency_ms"] / 1e6
    reason = needed.map(lambda v: f"needs {v:.6g} GB/s of memory, {arch.name} has {arch.dram_gb_s:.6g}")
    return _reasons(is_dense & (needed > limit), reason)


def _duplicates(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Find repeats of a problem and kernel within a run: all of them if they contradict, all but the first if not."""
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
    # The runs of a find database are ways of calling the same solver, as 2D or as 3D: the faster one counts.
    cause = "repeats a faster call" if backend_of_frame(frame).lists_fastest else "cold start"
    reason = ratio.map(lambda v: f"{cause}: took {v:.3g} times what another run measured")
    return _reasons(ratio > COLD_REPEAT, reason)


@dataclass(frozen=True)
class _RelativeTimes:
    """Log latencies of valid rows, in relation to their problem's median.

    Attributes:
        problem, kernel: number of each row's problem and kernel, of shape (rows,).
        own: log of each row's latency / its problem's median, of shape (rows,).
        table: the smallest `own` of each problem and kernel, of shape (problems, kernels); NaN without a row.
    """

    problem: _Ints
    kernel: _Ints
    own: _Floats
    table: _Floats

    @classmethod
    def of(cls, valid: pd.DataFrame, names: list[str]) -> _RelativeTimes:
        """Compute the times of valid rows whose problem has these columns."""
        problem = valid.groupby(names, sort=False).ngroup().to_numpy()
        kernel, kernels = pd.factorize(valid["kernel_name"])
        latency = np.log(valid["latency_ms"].to_numpy(dtype=np.float64))
        table = np.full((problem.max() + 1, len(kernels)), np.inf)
        np.minimum.at(table, (problem, kernel), latency)
        table[np.isinf(table)] = np.nan
        middle = np.nanmedian(table, axis=1)
        return cls(problem, kernel, latency - middle[problem], table - middle[:, None])


def _outliers(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Find latencies far off the kernel's usual ones, in relation to the same problem and to similar problems."""
    reasons = pd.Series("", index=frame.index, dtype=object)
    valid = frame[frame["is_valid"]]
    if not len(valid):
        return reasons
    names = list(OPS[target.op].column_names())
    times = _RelativeTimes.of(valid, names)
    is_known = np.isfinite(times.table)
    off = times.own - np.nanmedian(times.table, axis=0)[times.kernel]
    is_sampled = (valid["latency_ms"] <= SAMPLES_AGREE * valid["latency_min_ms"]).to_numpy() & (
        valid["repeats"].fillna(0) > 1
    ).to_numpy(dtype=bool)
    has_enough = (is_known.sum(axis=1)[times.problem] >= OUTLIER_MIN_KERNELS) & (
        is_known.sum(axis=0)[times.kernel] > OUTLIER_MIN_PROBLEMS
    )
    limit = np.log(np.where(is_sampled, SAMPLED_OUTLIER, OUTLIER))
    suspects = np.flatnonzero(has_enough & (np.abs(off) > limit))
    if not len(suspects):
        return reasons
    places = _places(valid.drop_duplicates(names)[names])
    for row in suspects.tolist():
        slack = np.log(SAMPLED_OUTLIER_AMONG_SIMILAR if is_sampled[row] else OUTLIER_AMONG_SIMILAR)
        if _is_off_similar(times, row, places, slack):
            factor, word = np.exp(abs(off[row])), "slower" if off[row] > 0 else "faster"
            reasons.loc[valid.index[row]] = (
                f"outlier: {factor:.3g} times {word} than this kernel usually is beside the others, "
                "and not so on similar problems"
            )
    return reasons


def _is_off_similar(times: _RelativeTimes, row: int, places: _Floats, slack: float) -> bool:
    """Return whether a row's time is off its kernel's range on similar problems by more than `slack`, a logarithm."""
    problem, kernel = times.problem[row], times.kernel[row]
    others = np.flatnonzero(np.isfinite(times.table[:, kernel]) & (np.arange(len(times.table)) != problem))
    distance = np.abs(places[others] - places[problem]).sum(axis=1)
    similar = times.table[others[np.argsort(distance, kind="stable")[:SIMILAR]], kernel]
    return bool(times.own[row] > similar.max() + slack or times.own[row] < similar.min() - slack)


def _places(problems: pd.DataFrame) -> _Floats:
    """Return coordinates of shape (problems, dimensions), whose distance measures dissimilarity.

    Sizes count by their logarithm; different words lie apart.
    """
    columns = [
        np.log2(1 + values.to_numpy(dtype=np.float64))
        if pd.api.types.is_numeric_dtype(values)
        else 3.0 * pd.factorize(values)[0]
        for _, values in problems.items()
    ]
    return cast(_Floats, np.stack(columns, axis=1))


def _reasons(bad: pd.Series, reason: pd.Series) -> pd.Series:
    return reason.astype(object).where(bad.fillna(False).astype(bool), "")


_CHECKS: dict[str, _Check] = {
    "above_peak": _above_peak,
    "above_bandwidth": _above_bandwidth,
    "contradiction": _duplicates,
    "cold_samples": _cold_samples,
    "cold_repeat": _cold_repeats,
    "outlier": _outliers,
}
RULES = ("row", *_CHECKS, HARMLESS)
