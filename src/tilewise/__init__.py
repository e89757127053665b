"""tilewise learns which tile kernel to launch."""

from tilewise._extras import name_missing_extras

__version__ = "0.1.0"

name_missing_extras()
