"""Fake compiler: some jobs fail, some crash their process."""

from __future__ import annotations

import os


def compile_one(job: str) -> str | None:
    if job == "crash":
        os._exit(11)
    return "does not compile" if job == "bad" else None
