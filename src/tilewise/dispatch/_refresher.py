"""The part of a dispatcher that swaps in new models."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch._selector import Selector
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.background import Listener, Ticker, register_after_fork, short_turns
from tilewise.dispatch.measuring import Measurer

if TYPE_CHECKING:
    from tilewise.dispatch.shadowing import Shadow
    from tilewise.dispatch.sources import Origin

_log = logging.getLogger(__name__)


class Refresher:
    """Looks for a newer model, on demand and periodically, and makes it the selector's current generation.

    Args:
        selector: serves requests.
        origin: names the model in the registry; None for models that never change.
        switches: say whether and how often to look.
        measurer: for new generations.
        shadow: is refreshed as well, and follows each new generation.

    Attributes:
        listener: listens to the relay; None without the switch `push`.
        looks: number of looks by result: ``new``, ``same``, ``failed``.
        looked_at: time of the last look that did not fail, in seconds since 1970; None before.
    """

    def __init__(
        self, selector: Selector, origin: Origin | None, switches: Switches, measurer: Measurer, shadow: Shadow | None
    ) -> None:
        self._selector, self._measurer, self._shadow, self._switches = selector, measurer, shadow, switches
        self._origin = None if "off" in (switches.network, switches.model) else origin
        name = f"tilewise refresh {selector.generation.target.name}"
        self._ticker = Ticker(self.refresh, switches.refresh_s, name)
        self.listener = self._make_listener()
        self.looks = {"new": 0, "same": 0, "failed": 0}
        self.looked_at: float | None = None
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child, in which no refresh is in progress."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start looking periodically, if the switches say so; with network=later, look at once."""
        later = self._switches.network == "later"
        if self._origin is not None and (self._switches.refresh_s or later):
            self._ticker.start(at_once=later)
        if self.listener is not None:
            self.listener.start()

    def _make_listener(self) -> Listener | None:
        """Return a listener to the relay of the switch `push`, for the aliases of this model and of the shadow's."""
        origin, switches = self._origin, self._switches
        if origin is None or not switches.push:
            return None
        aliases = origin.aliases if self._shadow is None else (*origin.aliases, switches.shadow)
        return Listener(switches.push, origin.target, aliases, self.refresh)

    def refresh(self) -> bool:
        """See :meth:`tilewise.dispatch.Dispatcher.refresh`."""
        with short_turns():  # threads that select all the time would hold up the registry's many small reads
            if self._shadow is not None:
                self._shadow.refresh()
            return self._origin is not None and self._look(self._origin)

    def _look(self, origin: Origin) -> bool:
        """Swap in the origin's model if it is new, and count the look."""
        result = "failed"
        try:
            is_new = self._swap(origin)
            result, self.looked_at = "new" if is_new else "same", time.time()
        finally:
            self.looks[result] += 1
        return is_new

    def _swap(self, origin: Origin) -> bool:
        """Make the origin's model the current one, and return whether it is new."""
        with self._lock:
            current = self._selector.generation
            fetched = origin.newer_model(current.content_hash, current.version)
            if fetched is None:
                return False
            fresh = Generation(Deployment.of(fetched), self._switches, self._measurer)
            fresh.previous_launcher = current.launcher or current.previous_launcher
            self._selector.warm_up(fresh)
            self._selector.generation = fresh
            if self._shadow is not None:
                self._shadow.follow(fresh)
        _log.info("%s: version %d serves from now on", fresh.target.name, fetched.version)
        return True

    def close(self) -> None:
        """Stop looking periodically, and listening."""
        self._ticker.stop()
        if self.listener is not None:
            self.listener.stop()
