"""Equal rounding on all x86 processors, so that equal measurements give equal models.

OpenBLAS chooses kernels by the processor, and those for AVX-512 round differently from those for AVX2. Weights of the
cost model then differ in their last digit, and the trees that start from them become others: a fresh clone promoted a
model of 97.92 % (P10 93.60) where the recorded one had 98.15 % (94.91).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "OPENBLAS_CORETYPE"
_PROCESSOR = Path("/proc/cpuinfo")


def round_as_recorded() -> None:
    """Choose OpenBLAS's kernels for AVX2, here and in processes that this one starts.

    The choice stays as it is if the environment names one, or if NumPy is loaded and has made it.
    """
    if "numpy" in sys.modules:
        return
    try:
        has_avx2 = " avx2 " in _PROCESSOR.read_text()
    except OSError:  # not Linux
        return
    if has_avx2:
        os.environ.setdefault(VARIABLE, "Haswell")
