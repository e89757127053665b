"""Shared libraries with CK Tile's C API: their client, the libraries that a user names, and manifests of folders.

Takes files, folders and manifests; gives open libraries and the kernels that they choose. Imports `errors`, `files`,
`ops` and the kernels' names. `tilewise.kernels.ck` hands its members on.
"""

from __future__ import annotations

from tilewise.kernels.ck.libraries._libraries import LIBRARY_TYPES, CkLibraries, TensorMemory, chosen_kernel
from tilewise.kernels.ck.libraries._library import CkLibrary
from tilewise.kernels.ck.libraries._manifest import LibraryRecord, Manifest, link_manifest, read_manifest, sha256_of

__all__ = [
    "LIBRARY_TYPES",
    "CkLibraries",
    "CkLibrary",
    "LibraryRecord",
    "Manifest",
    "TensorMemory",
    "chosen_kernel",
    "link_manifest",
    "read_manifest",
    "sha256_of",
]
