"""A relay that tells dispatchers at once when an alias moves: MLflow's webhooks in, streams of events out.

``python -m tilewise.servers.relay`` runs it; :func:`relay_app` is its ASGI application, and :func:`register_webhook`
makes an MLflow server call it. Needs the extra ``servers``. A dispatcher learns "look now" from it and nothing else, so
a forged or lost event costs a look or a wait, never a wrong model. Used by the servers of a team.
"""

from __future__ import annotations

from tilewise.servers.relay._app import relay_app
from tilewise.servers.relay._webhook import register_webhook

__all__ = [
    "register_webhook",
    "relay_app",
]
