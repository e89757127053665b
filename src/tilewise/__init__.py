"""Learn which tile kernel to launch."""

from typing import TYPE_CHECKING

from tilewise._extras import name_missing_extras
from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.autotuning import Tunable as Tunable
    from tilewise.autotuning import autotune as autotune
    from tilewise.ops import OpDefinition as OpDefinition
    from tilewise.ops import register as register

__version__ = "0.1.0"

__all__, __getattr__ = lazy_face(__name__, {"autotuning": ("Tunable", "autotune"), "ops": ("OpDefinition", "register")})

name_missing_extras()
