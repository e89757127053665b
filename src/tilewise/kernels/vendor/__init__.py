"""The vendor's library as candidates: cuDNN for convolutions, cuBLAS and cuBLASLt for products, called by PyTorch.

It takes names of calls, and gives their backend and rules. Everything here imports only NumPy and the standard library,
as a dispatcher needs it; the code that imports torch loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.kernels.vendor._backend import CALLS as CALLS
    from tilewise.kernels.vendor._backend import VENDOR as VENDOR
    from tilewise.kernels.vendor._backend import VendorCall as VendorCall
    from tilewise.kernels.vendor._backend import leaves as leaves
    from tilewise.kernels.vendor._calls import BoundCall as BoundCall
    from tilewise.kernels.vendor._calls import as_stored as as_stored
    from tilewise.kernels.vendor._calls import bind_call as bind_call
    from tilewise.kernels.vendor._calls import bind_torch_call as bind_torch_call

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_backend": ("CALLS", "VENDOR", "VendorCall", "leaves"),
        "_calls": ("BoundCall", "as_stored", "bind_call", "bind_torch_call"),
    },
)
