"""Descriptors are encoded once for each place in memory, and reach the kernel as Triton would pass them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.nvidia.driver import wrap_handle_tensordesc
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.dispatch.launching import _descriptors as descriptors
from tilewise.dispatch.launching._descriptors import EncodedDescriptors, launch_of

SIGNATURE = {"a": "tensordesc<fp16[16, 16]>", "p": "*fp16", "b": "tensordesc<fp16[8, 16]>", "n": "i32"}
KINDS = [None, None]  # as for kernels that read without TMA: no driver is needed


class Run:
    """A launcher that is built as Triton's, and notes what reaches its lowest part."""

    def __init__(self) -> None:
        self.reached: list[Any] = []
        self.launch = wrap_handle_tensordesc(lambda *args: self.reached.append(args), SIGNATURE, KINDS)

    def __call__(self, *args: Any) -> None:
        self.launch(*range(13), *args) if _flat() else self.launch(*range(13), args)


def _flat() -> bool:
    """Return whether this Triton passes a kernel's arguments one by one, as up to 3.6."""
    from triton.backends.nvidia import driver

    return hasattr(driver, "_BASE_ARGS_FORMAT_LEN")


def described(t: torch.Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(t, list(t.shape), list(t.stride()), block)


def values(reached: Any) -> list[Any]:
    """Return the arguments of the kernel, with pointers in place of memory."""
    flat = reached[13:] if _flat() else reached[-1]
    return [v.data_ptr() if hasattr(v, "data_ptr") else v for v in flat]


@pytest.mark.parametrize("kinds", [KINDS, None])
def test_arguments_are_those_of_triton(kinds: list[None] | None) -> None:
    a, b = torch.zeros(32, 16, dtype=torch.float16), torch.zeros(8, 64, dtype=torch.float16)
    run = Run()
    compiled: Any = SimpleNamespace(run=run, metadata=SimpleNamespace(tensordesc_meta=kinds))
    launch, encode_of = launch_of(compiled)
    first, second = encode_of(0), encode_of(1)
    run(described(a, [16, 16]), 1234, described(b, [8, 16]), 7)
    launch(*first(described(a, [16, 16])), 1234, *second(described(b, [8, 16])), 7)
    theirs, ours = run.reached
    assert values(theirs) == values(ours)
    assert values(ours)[0] == a.data_ptr()


def test_a_launcher_that_is_built_otherwise_is_taken_as_it_is() -> None:
    run: Any = SimpleNamespace(launch=max)
    compiled: Any = SimpleNamespace(run=run)
    descriptor: Any = object()
    launch, encode_of = launch_of(compiled)
    assert launch is run
    assert encode_of(0)(descriptor) == [descriptor]


def test_each_place_is_encoded_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_MAX_ENCODED", 2)
    seen: list[int] = []

    def encode(descriptor: TensorDescriptor) -> list[object]:
        seen.append(descriptor.base.data_ptr())
        return [descriptor.base.data_ptr(), *descriptor.shape]

    encoded = EncodedDescriptors(1, 0, described(torch.zeros(32, 16, dtype=torch.float16), [16, 16]), encode)
    for pointer in (160, 320, 160, 480, 160):
        assert encoded([0, pointer, 0]) == [pointer, 32, 16]
    assert seen == [160, 320, 480, 160]  # the third place drops the first two
