"""Tuned functions for the tests, in a file of their own: source hashes need it, and processes import it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tilewise

CONFIGS = ({"delay": 20}, {"delay": 0}, {"delay": 10})


def sleeper(log: Path | None = None, configs: Iterable[object] = CONFIGS, **options: Any) -> Any:
    """Return a tuned function that sleeps for `delay` ms and logs a line for each run."""

    @tilewise.autotune(configs=list(configs), key=["n"], name="sleeper", rep=10, **options)
    def run(n: int, *, delay: int) -> int:
        if log is not None:
            with log.open("a") as file:
                file.write(f"{n} {delay}\n")
        time.sleep(delay / 1e3)
        return n

    return run


def lines(log: Path) -> list[str]:
    """Return the runs that were logged."""
    return log.read_text().splitlines() if log.exists() else []


def fixed_bench(times: dict[int, float]) -> Callable[..., list[float]]:
    """Return a benchmark that runs a call once and tells the recorded time of its configuration, in ms."""

    def bench(call: Callable[[], object], quantiles: object) -> list[float]:
        del ran[:]
        call()
        return [times[ran[-1]]] * 3

    return bench


ran: list[int] = []


def recorded(times: dict[int, float], **options: Any) -> Any:
    """Return a tuned function whose configurations take the stated times."""

    @tilewise.autotune(
        configs=[{"width": w} for w in times], key=["n"], name="recorded", do_bench=fixed_bench(times), **options
    )
    def run(n: int, *, width: int) -> int:
        ran.append(width)
        if width < 0:
            raise ValueError("width must not be negative")
        return width

    return run


def main(log: str, n: str) -> None:
    """Call the tuned function once and print the chosen delay."""
    tuned = sleeper(Path(log))
    tuned(int(n))
    print(tuned.best_config["delay"])


if __name__ == "__main__":
    main(*sys.argv[1:])
