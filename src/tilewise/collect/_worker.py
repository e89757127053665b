"""Worker process: owns an engine, measures one problem after another, and announces what it starts.

Messages to the coordinator are tuples: ``("ready", Device)``, ``("begin", kernel | None)``, ``("done", outcomes)``,
``("lost", text)`` when the device context broke, ``("failed", text)`` when the engine cannot work at all.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection, wait

from tilewise.collect._outcomes import Outcome
from tilewise.collect._plan import Plan
from tilewise.collect.engines import EngineFactory, EngineLostError


def serve(connection: Connection, factory: EngineFactory, plan: Plan, device: int) -> None:
    """Measure the problems that arrive as ``(index, known outcomes, careful)``; end at None or when the pipe closes."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        engine = factory(plan, device)
        connection.send(("ready", engine.device()))
    except Exception as e:
        connection.send(("failed", f"{type(e).__name__}: {e}"))
        return
    while (job := _receive(connection)) is not None:
        index, known, careful = job
        try:
            outcomes = engine.measure(
                plan.items[index], known, lambda kernel: connection.send(("begin", kernel)), careful
            )
            connection.send(("done", outcomes))
        except EngineLostError as e:
            connection.send(("lost", str(e)))
            return
        except Exception as e:
            connection.send(("lost", f"{type(e).__name__}: {e}"))
            return


def _receive(connection: Connection) -> tuple[int, dict[int, Outcome], bool] | None:
    try:
        return connection.recv()  # type: ignore[no-any-return]
    except EOFError:
        return None


def _exit_with_parent() -> None:
    """End this process when its coordinator dies, which may be killed: a hanging kernel would hold the device."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
