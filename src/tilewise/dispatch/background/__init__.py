"""Background work of a dispatcher: periodic calls, events, appended lines, turns of threads, hooks for forks and exit.

Uses the standard library only. The dispatcher, its logs, its launchers and shadowing build on it.
"""

from __future__ import annotations

from tilewise.dispatch.background._appender import Appender
from tilewise.dispatch.background._forks import call_at_exit, register_after_fork
from tilewise.dispatch.background._listener import Listener
from tilewise.dispatch.background._ticker import Ticker
from tilewise.dispatch.background._turns import short_turns

__all__ = [
    "Appender",
    "Listener",
    "Ticker",
    "call_at_exit",
    "register_after_fork",
    "short_turns",
]
