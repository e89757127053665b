"""A background thread that follows a relay's stream of events, and calls a method after each of them.

The stream says no more than "look now" (docs/fleet.md). It is only a hint: after a break, which may have swallowed one,
the method is called as soon as the stream is there again.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Sequence

from tilewise.dispatch.background._ticker import Ticker

_SILENCE_S = 35.0  # three missed signs of life: the relay, or the way to it, is gone
_RETRY_S = 5.0
_PAUSE_S = 0.25  # between two calls, whatever the relay sends
_MAX_LINE = 1024


class Listener:
    """Calls a bound method when a relay announces that an alias of a model has moved, from :meth:`start` on.

    Args:
        relay: address of the relay.
        model: name of the registered model.
        aliases: that matter.
        method: bound method to call; only a weak reference to its object is kept.
    """

    def __init__(self, relay: str, model: str, aliases: Sequence[str], method: Callable[[], object]) -> None:
        import urllib.parse  # with the next one, half of a dispatcher's own import time, and few listen

        query = urllib.parse.urlencode([("model", model), *(("alias", alias) for alias in aliases)])
        self._url = f"{relay.rstrip('/')}/moves?{query}"
        self._method = weakref.WeakMethod(method)
        self._ended = False
        self._ticker = Ticker(self._follow, _RETRY_S, f"tilewise push {model}")
        self.is_connected = False
        self.events = 0

    def start(self) -> None:
        """Start to listen."""
        self._ticker.start(at_once=True)

    def stop(self) -> None:
        """Stop to listen; the connection ends with the relay's next line."""
        self._ended = True
        self._ticker.stop()

    def _follow(self) -> None:
        """Follow the stream until it breaks; the ticker calls again.

        Raises:
            OSError: the relay does not answer, or refuses.
            ValueError: it sends something else than events.
        """
        import urllib.request

        is_first = True
        try:
            with urllib.request.urlopen(self._url, timeout=_SILENCE_S) as lines:
                while line := lines.readline(_MAX_LINE):
                    if len(line) == _MAX_LINE:
                        raise ValueError(f"a line of the relay has {_MAX_LINE} bytes or more; it must be an event")
                    self.is_connected = True
                    is_event = line.startswith(b"data:")
                    self.events += is_event
                    if (is_event or is_first) and not self._call():
                        return
                    is_first = False
                    if self._ended or self._method() is None:
                        return
        finally:
            self.is_connected = False
        time.sleep(random.uniform(0, _RETRY_S))  # a relay that restarts does not get all of a fleet at once

    def _call(self) -> bool:
        """Call the method, and return False if its object is gone or the listener was stopped."""
        method = self._method()
        if self._ended or method is None:
            self.stop()
            return False
        try:
            method()
        finally:
            del method
        time.sleep(_PAUSE_S)
        return True
