"""Measuring on the spot with kernels that come in libraries: those of CK Tile."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewise.dispatch.measuring._measure import MeasurementJob, Outcomes, measure_apart
from tilewise.errors import ConfigError
from tilewise.kernels.ck import CkLibraries
from tilewise.ops import Target

if TYPE_CHECKING:
    from tilewise.dispatch.measuring._machine import Machine


class LibraryMeasurer:
    """The libraries that the environment names, used from a separate process."""

    def machine(self, target: Target) -> Machine | None:
        """Return this host with the state of its libraries, or None if no library is named.

        A library tells neither its arch nor its device: those that the user names are taken to be of the target's.
        """
        from tilewise.dispatch.measuring._machine import Machine  # imports on first use keep the start short

        try:
            libraries = CkLibraries.find(target.op)
        except ConfigError:
            return None
        return Machine(platform.node(), target.arch, "", "", "", _state_of(libraries))

    def absence(self, target: Target) -> str:
        """See :meth:`Measurer.absence`."""
        try:
            CkLibraries.find(target.op)
        except ConfigError as e:
            return str(e)
        return f"the libraries of {target.op} were named after this dispatcher looked for them"

    def measure(self, job: MeasurementJob) -> Outcomes:
        """See :meth:`Measurer.measure`; a kernel without a library is ``unsupported``.

        Raises:
            ConfigError: a library cannot be used, or none runs the problem.
        """
        from tilewise.collect import Outcome
        from tilewise.collect.engines import find_library_kernels

        files = find_library_kernels(job.target, CkLibraries.find(job.target.op), list(job.kernels)).files
        names, pool = job.pool.names, job.pool
        held = [k for k, name in enumerate(names) if name in files]
        place = {k: i for i, k in enumerate(held)}
        wanted = {problem: [place[k] for k in kernels if k in place] for problem, kernels in job.kernels.items()}
        wanted = {problem: kernels for problem, kernels in wanted.items() if kernels}
        missing = Outcome("unsupported", "no library runs this kernel for the problem; name one that does")
        outcomes = {problem: dict.fromkeys(kernels, missing) for problem, kernels in job.kernels.items()}
        if wanted:
            some = replace(pool, kernels=tuple(pool.kernels[k] for k in held))
            measured = measure_apart(job._replace(pool=some, kernels=wanted))
            for problem, places in wanted.items():
                outcomes[problem] |= {held[i]: measured.outcome(problem, names[held[i]]) for i in places}
        return outcomes


def _state_of(libraries: CkLibraries) -> str:
    """Return a hash of the files' names, sizes and times of change, which decide whether measurements still hold."""
    stated = [(str(file.resolve()), file.stat()) for file in libraries.files if file.exists()]
    text = "".join(f"{name} {state.st_size} {state.st_mtime_ns}\n" for name, state in stated)
    return hashlib.sha256(text.encode()).hexdigest()
