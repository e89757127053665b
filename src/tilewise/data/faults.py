"""What makes a label untrustworthy: the one place that preparing and merging ask.

A rule looks at rows of one target and says which of them break it and why. Rules that need one row only (types,
impossible problems, names that do not belong to their columns) come from :func:`tilewise.data.schema.row_faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.arch import HardwareProfile, load_arch
from tilewise.data.schema import row_faults, to_measurements
from tilewise.ops import OPS, Target

__all__ = ["HARMLESS", "RULES", "find_faults", "label_faults"]

ROOFLINE_SLACK = 1.02  # clocks may boost a little above the profile's
CONTRADICTION = 1.05  # two latencies of one run that differ by more cannot both be right
COLD_SPREAD = 3.0  # a median this far above the fastest sample timed something else than the kernel
COLD_REPEAT = 2.0  # a latency this far above what another run measured

# An outlier is this many times off what its kernel usually takes relative to its problem's median, and this many times
# off the extremes of what the same kernel takes on the most similar problems. Where a row's own samples agree with each
# other, much more is needed: some kernels really are ten times slower on one shape than on all shapes like it.
OUTLIER, OUTLIER_AMONG_SIMILAR = 5.0, 3.0
SAMPLED_OUTLIER, SAMPLED_OUTLIER_AMONG_SIMILAR = 20.0, 20.0
SAMPLES_AGREE = 1.5  # median / fastest
SIMILAR = 8  # problems
OUTLIER_MIN_KERNELS, OUTLIER_MIN_PROBLEMS = 4, 5  # with fewer nobody knows what is usual

_Floats = npt.NDArray[np.float64]
_Check = Callable[[pd.DataFrame, Target, HardwareProfile], pd.Series]

HARMLESS = "repeat"  # the one rule whose rows may go without anybody deciding: the same is there already


def find_faults(rows: pd.DataFrame, target: Target) -> pd.DataFrame:
    """The rule that each row breaks and why, "" where it is good: columns `rule` and `reason`, indexed like `rows`.

    Args:
        rows: of `target`, from :func:`tilewise.data.schema.read_raw` or a measurement table; the index must be unique.
        target: theirs.

    Raises:
        ConfigError: the arch has no profile, or that no peak for the dtype.
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
    """As :func:`find_faults`, with the rules that compare rows, or rows with the hardware.

    Args:
        frame: rows without faults of their own, of one target.
        target: theirs.
        arch: gives the roofline.
    """
    faults = pd.DataFrame({"rule": "", "reason": ""}, index=frame.index, dtype=object)
    for rule, check in _CHECKS.items():
        left = frame[faults["rule"] == ""]
        reasons = check(left, target, arch)
        broken = reasons[reasons != ""]
        # A contradiction and a repeat come from one look at the duplicates.
        faults.loc[broken.index, "rule"] = np.where(broken.str.startswith("repeats"), HARMLESS, rule)
        faults.loc[broken.index, "reason"] = broken
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


def _outliers(frame: pd.DataFrame, target: Target, arch: HardwareProfile) -> pd.Series:
    """Kernels far off what they usually take, compared with the same problem and with similar ones."""
    reasons = pd.Series("", index=frame.index, dtype=object)
    valid = frame[frame["is_valid"]]
    if not len(valid):
        return reasons
    names = list(OPS[target.op].column_names())
    problem = valid.groupby(names, sort=False).ngroup().to_numpy()
    kernel, kernels = pd.factorize(valid["kernel_name"])
    latency = np.log(valid["latency_ms"].to_numpy(dtype=np.float64))
    table = np.full((problem.max() + 1, len(kernels)), np.inf)
    np.minimum.at(table, (problem, kernel), latency)
    table[np.isinf(table)] = np.nan
    middle = np.nanmedian(table, axis=1)
    relative = table - middle[:, None]  # (problems, kernels) log of latency / the problem's median
    usual = np.nanmedian(relative, axis=0)
    known = np.isfinite(relative)
    off = latency - middle[problem] - usual[kernel]
    sampled = (valid["latency_ms"] <= SAMPLES_AGREE * valid["latency_min_ms"]).to_numpy() & (
        valid["repeats"].fillna(0) > 1
    ).to_numpy(dtype=bool)
    judged = (known.sum(axis=1)[problem] >= OUTLIER_MIN_KERNELS) & (known.sum(axis=0)[kernel] > OUTLIER_MIN_PROBLEMS)
    limit = np.log(np.where(sampled, SAMPLED_OUTLIER, OUTLIER))
    suspects = np.flatnonzero(judged & (np.abs(off) > limit))
    if not len(suspects):
        return reasons
    places = _places(valid.drop_duplicates(names)[names])
    for row in suspects.tolist():
        p, k = problem[row], kernel[row]
        others = np.flatnonzero(known[:, k] & (np.arange(len(table)) != p))
        distance = np.abs(places[others] - places[p]).sum(axis=1)
        like = relative[others[np.argsort(distance, kind="stable")[:SIMILAR]], k]
        among = np.log(SAMPLED_OUTLIER_AMONG_SIMILAR if sampled[row] else OUTLIER_AMONG_SIMILAR)
        here = latency[row] - middle[p]
        if here > like.max() + among or here < like.min() - among:
            times, word = np.exp(abs(off[row])), "slower" if off[row] > 0 else "faster"
            reasons.loc[valid.index[row]] = (
                f"outlier: {times:.3g} times {word} than this kernel usually is beside the others, "
                "and not so on similar problems"
            )
    return reasons


def _places(problems: pd.DataFrame) -> _Floats:
    """(problems, dimensions) where distance is dissimilarity: sizes by their logarithm, words apart from each other."""
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
