"""Records of tuning: the times of a kernel's configurations by key, in files that processes share.

Takes keys and times, gives them back as long as the kernel's code and the machine are the same. Imports the standard
library and NumPy only. Used by the tuned kernels, which export their records as measurement tables.
"""

from __future__ import annotations

from tilewise.autotuning.records._source_hash import python_function, source_hash
from tilewise.autotuning.records._tuned_entry import Figures, TunedContext, TunedEntry, TunedKey
from tilewise.autotuning.records._tuned_store import TUNED_FOLDER, TunedStore, read_records

__all__ = [
    "TUNED_FOLDER",
    "Figures",
    "TunedContext",
    "TunedEntry",
    "TunedKey",
    "TunedStore",
    "python_function",
    "read_records",
    "source_hash",
]
