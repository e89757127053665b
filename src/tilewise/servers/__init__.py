"""Servers for a team: PostgreSQL, an S3-compatible store and an MLflow server over both, without containers.

``python -m tilewise.servers`` runs them until Ctrl-C; :func:`grant_role` gives users their roles. Needs the extra
``servers``; importing this package does not.
Takes a folder for data, logs and settings. Uses ``errors`` and ``files`` only. No other package imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.servers._stack import Stack as Stack
    from tilewise.servers._stack import run_stack as run_stack
    from tilewise.servers._team import Role as Role
    from tilewise.servers._team import grant_role as grant_role

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_stack": (
            "Stack",
            "run_stack",
        ),
        "_team": (
            "Role",
            "grant_role",
        ),
    },
)
