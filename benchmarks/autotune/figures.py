"""Tables of the results of ``learn.py`` and ``serve.py``; part of ``benchmarks.report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewise.markdown import table

GOAL_MEAN, GOAL_P10 = 98.0, 95.0  # percent
GOAL_US, GOAL_CHOICE_US, GOAL_FASTER = 5.0, 100.0, 50.0


def learnt(result: Mapping[str, Any]) -> str:
    """Return the efficiencies for unseen keys as a Markdown table."""
    ways = ("model", "ceiling", "fixed", "first")
    rows = [
        [
            f"`{case['example']}`",
            *(str(case[n]) for n in ("configurations", "train_keys", "unseen_keys")),
            *(f"{case[f'{way}_{n}']:.1f} %" for way in ways for n in ("mean", "p10")),
        ]
        for case in result["cases"]
    ]
    names = ("model", "noise ceiling", "best single configuration", "first configuration")
    header = [
        "kernel",
        "configurations",
        "learnt from",
        "unseen",
        *(f"{n}: {f}" for n in names for f in ("mean", "P10")),
    ]
    mean, p10 = (min(case[f"model_{n}"] for case in result["cases"]) for n in ("mean", "p10"))
    least = f"The least of all kernels: mean {mean:.1f}, P10 {p10:.1f}; the goals are {GOAL_MEAN:g} and {GOAL_P10:g}."
    return f"{table(header, rows)}\n{least} Measured on {result['device']}.\n"


def served(result: Mapping[str, Any]) -> str:
    """Return the times of remembered and first calls as a Markdown table."""
    rows = []
    for case in result["cases"]:
        more = case["tilewise_us"] - case["plain_us"], case["triton_us"] - case["plain_us"]
        figures = [f"{case['plain_us']:.1f}", *(f"{us:.1f}" for us in more)]
        if "unseen_keys" in case:
            firsts = ("choice_median_us", "first_median_ms", "triton_first_mean_ms", "times_faster")
            figures += [f"{case[name]:.{digits}f}" for name, digits in zip(firsts, (0, 2, 0, 0), strict=True)]
        rows.append([f"`{case['example']}`", *figures])
    header = [
        "kernel", "plain launch, us", "tilewise adds, us", "triton.autotune adds, us", "choice, us",
        "first call, ms", "of triton.autotune, ms", "times faster",
    ]  # fmt: skip
    header = header[: len(rows[0])]
    goals = f"The goals: add {GOAL_US:g} us, choose in {GOAL_CHOICE_US:g} us, {GOAL_FASTER:g} times faster."
    return f"{table(header, rows)}\n{goals}\n"
