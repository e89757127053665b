"""tilewise learns which tile kernel to launch."""

__version__ = "0.1.0"
