"""The shadow of a dispatcher, where the switches ask for one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.measuring import Measurer
from tilewise.dispatch.sources import Origin

if TYPE_CHECKING:
    from tilewise.dispatch.shadowing import Shadow

_log = logging.getLogger(__name__)


def make_shadow(generation: Generation, switches: Switches, origin: Origin | None, measurer: Measurer) -> Shadow | None:
    """Return the shadow that compares a second model with `generation`'s, or None without one."""
    if "off" in (switches.shadow, switches.model):
        return None
    backend = generation.pool.backend
    if not backend.timed_in_background and not switches.simulate:
        _log.warning("shadow=%s: %s kernels cannot be timed, nothing is compared", switches.shadow, backend.label)
        return None
    from tilewise.dispatch.shadowing import Shadow  # rarely needed

    return Shadow(generation.target, switches, origin, measurer)
