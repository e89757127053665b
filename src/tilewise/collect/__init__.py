"""Measuring of kernels: a plan, isolated worker processes, timing in rounds, and a journal to resume from.

Takes a :class:`Plan` (problems, kernels and timing settings) and gives a measurement table in parquet. Imports the
standard library, NumPy, pyarrow, torch and triton only, each when a member needs it: it runs on a bare GPU machine.
Used by the commands, by campaigns, and by dispatchers that measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.collect._collectors import CollectTask as CollectTask
    from tilewise.collect._collectors import collect_plan as collect_plan
    from tilewise.collect._compile_ahead import compile_ahead as compile_ahead
    from tilewise.collect._compile_ahead import listed_programs as listed_programs
    from tilewise.collect._forecast import SECONDS_PER_PROBLEM as SECONDS_PER_PROBLEM
    from tilewise.collect._forecast import forecast_plan as forecast_plan
    from tilewise.collect._forecast import pair_seconds as pair_seconds
    from tilewise.collect._journal import FailedKernels as FailedKernels
    from tilewise.collect._journal import JournalEntry as JournalEntry
    from tilewise.collect._outcomes import Outcome as Outcome
    from tilewise.collect._outcomes import Samples as Samples
    from tilewise.collect._outcomes import group_failures as group_failures
    from tilewise.collect._outcomes import outcome_columns as outcome_columns
    from tilewise.collect._outcomes import summarize_samples as summarize_samples
    from tilewise.collect._plan import Item as Item
    from tilewise.collect._plan import Plan as Plan
    from tilewise.collect._plan import Timing as Timing
    from tilewise.collect._plan import load_plan as load_plan
    from tilewise.collect._program_package import Origin as Origin
    from tilewise.collect._program_package import Package as Package
    from tilewise.collect._program_package import cached_files as cached_files
    from tilewise.collect._program_package import install_package as install_package
    from tilewise.collect._program_package import read_package as read_package
    from tilewise.collect._program_package import write_package as write_package
    from tilewise.collect._progress import ProgressLine as ProgressLine
    from tilewise.collect._result_table import measurement_table as measurement_table
    from tilewise.collect._result_table import write_measurement_table as write_measurement_table
    from tilewise.collect._rounds import TimingShare as TimingShare
    from tilewise.collect._rounds import time_in_rounds as time_in_rounds
    from tilewise.collect._rounds import timing_shares as timing_shares
    from tilewise.collect._run import CollectLimits as CollectLimits
    from tilewise.collect._run import CollectReport as CollectReport
    from tilewise.collect._run import Devices as Devices
    from tilewise.collect._run import ProgressCallback as ProgressCallback
    from tilewise.collect._run import collect_from_libraries as collect_from_libraries
    from tilewise.collect._run import collect_on_gpus as collect_on_gpus
    from tilewise.collect._run import collect_with_engine as collect_with_engine

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_collectors": (
            "CollectTask",
            "collect_plan",
        ),
        "_compile_ahead": (
            "compile_ahead",
            "listed_programs",
        ),
        "_forecast": (
            "SECONDS_PER_PROBLEM",
            "forecast_plan",
            "pair_seconds",
        ),
        "_journal": (
            "FailedKernels",
            "JournalEntry",
        ),
        "_outcomes": (
            "Outcome",
            "Samples",
            "group_failures",
            "outcome_columns",
            "summarize_samples",
        ),
        "_plan": (
            "Item",
            "Plan",
            "Timing",
            "load_plan",
        ),
        "_program_package": (
            "Origin",
            "Package",
            "cached_files",
            "install_package",
            "read_package",
            "write_package",
        ),
        "_progress": ("ProgressLine",),
        "_result_table": (
            "measurement_table",
            "write_measurement_table",
        ),
        "_rounds": (
            "TimingShare",
            "time_in_rounds",
            "timing_shares",
        ),
        "_run": (
            "CollectLimits",
            "CollectReport",
            "Devices",
            "ProgressCallback",
            "collect_from_libraries",
            "collect_on_gpus",
            "collect_with_engine",
        ),
    },
)
