"""A kernel's launches as one piece of work."""

from __future__ import annotations

from collections.abc import Sequence

from tilewise.kernels.triton.program import Launch, launch


def launch_all(launches: Sequence[Launch]) -> None:
    """Run them in order, on the current device and stream."""
    for item in launches:
        launch(item)
