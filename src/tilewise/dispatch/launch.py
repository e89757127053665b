"""Running kernels: from a problem and its tensors to launches on the current stream.

Imports torch and triton, so a dispatcher imports this module when it first runs something, never before. The first run
of a problem on a device binds its kernel: compiled, loaded, every argument but the pointers in place. Runs after that
look the bound kernel up, check the tensors, allocate and launch; they never wait for the device, so a CUDA graph can
capture them (bind before: compiling or loading has no place in a graph).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

import torch
import triton

from tilewise.dispatch import bind
from tilewise.dispatch.measure import capturing
from tilewise.errors import KernelError, ProblemError, one_line
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.operands import Shape, forms
from tilewise.kernels.triton.family import family_of
from tilewise.kernels.triton.program import RESULT_TYPES, Program, interpreted
from tilewise.kernels.triton.tensors import TORCH_TYPES
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)

_MAX_BOUND = 4096  # bound kernels that a launcher keeps; some KB each
_MAX_REASONS = 3
_SHAPE = attrgetter("shape")

# (the programs of a kernel, device): they failed here, so they are not tried again
_failed: set[tuple[tuple[Program, ...], int]] = set()


class Choice(Protocol):
    """What a launcher needs of a :class:`tilewise.dispatch.Selection`."""

    @property
    def kernel(self) -> Any: ...  # noqa: D102
    @property
    def kernel_name(self) -> str: ...  # noqa: D102


class _Ready:
    """A bound kernel with what its tensors must be: shapes of the operands -> shape of the result."""

    __slots__ = ("kernel_name", "launch", "shapes")

    def __init__(self, kernel_name: str, launch: bind.Bound, shapes: dict[tuple[Shape, ...], Shape]) -> None:
        self.kernel_name, self.launch, self.shapes = kernel_name, launch, shapes


class Launcher:
    """Runs problems of one target; it keeps what `select` said, so a dispatcher that learns better makes a new one.

    Tensors are contiguous, of the target's dtype, and on one device; the result has the dtype of the operands, bf16
    for fp8. Operands that do not begin at a multiple of 16 bytes are copied first, and so is such a result after.

    ============ ======================================== ===================
    variant      operands                                 result
    ============ ======================================== ===================
    forward      x (N, Di, Hi, Wi, C), w (K, Z, Y, X, C/G) y (N, Do, Ho, Wo, K)
    bwd_data     dy, w                                    dx
    bwd_weight   dy, x                                    dw
    universal    a (M, K), b (K, N); where the layout     c (M, N)
                 says ``c`` stored the other way round
    ============ ======================================== ===================

    A 2D convolution's tensors may leave out the depth axis (Di, Z, Do), all of them alike. `out` must not overlap the
    operands. Threads may share a launcher.

    Args:
        target: what is run.
        select: problem -> the kernel to launch.
        rank: problem -> all kernels, best first; asked where the selected one fails.
        spare: what an earlier launcher had bound; launched only where nothing can be bound, which is during capture.
    """

    def __init__(
        self,
        target: Target,
        select: Callable[[Problem], Choice],
        rank: Callable[[Problem], Sequence[Choice]],
        spare: Mapping[tuple[Problem, int], _Ready] | None = None,
    ) -> None:
        self._target = target
        self._select, self._rank = select, rank
        self._family = family_of(target.op, target.variant)
        self._dtype = TORCH_TYPES[target.dtype]
        self._result_dtype = TORCH_TYPES[RESULT_TYPES[target.dtype]]
        self._device_type = "cpu" if interpreted() else "cuda"
        self._ready: dict[tuple[Problem, int], _Ready] = {}
        self._spare = spare or {}

    def run(self, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """Launch the kernel for `problem` on the current stream of the tensors' device; see the class.

        Raises:
            ProblemError: a tensor does not belong to the problem; `.field` names it.
            KernelError: no kernel supports the problem, none could be launched, or the device is of another arch.
        """
        try:
            ready = self._ready[problem, tensors[0].get_device()]
        except (KeyError, IndexError, AttributeError):
            return self._first(problem, tensors, out)
        out = self._checked(problem, ready.shapes, tensors, out)
        try:
            ready.launch(tensors, out)
        except Exception as e:
            self._give_up(problem, ready.kernel_name, tensors[0].get_device(), e)
            return self._first(problem, tensors, out)
        return out

    @property
    def bound(self) -> dict[tuple[Problem, int], _Ready]:
        """What a later launcher takes as `spare`, by problem and device."""
        bound = {**self._spare, **self._ready}
        return dict(islice(bound.items(), max(len(bound) - _MAX_BOUND, 0), None))

    def _checked(
        self, problem: Problem, shapes: dict[tuple[Shape, ...], Shape], tensors: Sequence[torch.Tensor],
        out: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Where the result goes, once all tensors are known to be right."""
        try:
            result = shapes[tuple(map(_SHAPE, tensors))]
            device, dtype = tensors[0].get_device(), self._dtype
            for t in tensors:
                if t.dtype is not dtype or t.get_device() != device or not t.is_contiguous():
                    raise self._complaint(problem, tensors)
        except (KeyError, AttributeError):
            raise self._complaint(problem, tensors) from None
        if out is None:
            return torch.empty(result, dtype=self._result_dtype, device=tensors[0].device)
        if (
            not isinstance(out, torch.Tensor)
            or out.dtype is not self._result_dtype
            or out.get_device() != device
            or out.shape != result
            or not out.is_contiguous()
        ):
            wrong = self._wrong(out, (result,), self._result_dtype, tensors[0].device)
            raise ProblemError(self._family.tensors[-1], f"out {wrong}")
        return out

    def _complaint(self, problem: Problem, tensors: Sequence[torch.Tensor]) -> ProblemError:
        """What is wrong with operands of which something is."""
        names, allowed = self._family.tensors[:-1], list(forms(self._family, problem))
        if len(tensors) != len(names):
            return ProblemError("tensors", f"{self._target.name} takes {' and '.join(names)}, got {len(tensors)}")
        for i, (name, t) in enumerate(zip(names, tensors, strict=True)):
            device = getattr(tensors[0], "device", None)
            wrong = self._wrong(t, tuple(form[i] for form in allowed), self._dtype, device)
            if wrong:
                return ProblemError(name, wrong)
        got = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(names, tensors, strict=True))
        return ProblemError("tensors", f"all with a depth axis or none, got {got}")

    def _wrong(self, t: Any, shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device | None) -> str | None:
        """What is wrong with a tensor, or None."""
        if not isinstance(t, torch.Tensor):
            return f"must be a torch.Tensor, got {type(t).__name__}"
        if t.device.type != self._device_type or (device is not None and t.device != device):
            expected = self._device_type if device is None or device.type != self._device_type else device
            return f"must be on {expected}, is on {t.device}"
        if t.dtype is not dtype:
            return f"must be {dtype}, is {t.dtype}"
        if tuple(t.shape) not in shapes:
            return f"must have the shape {' or '.join(map(str, shapes))}, has {tuple(t.shape)}"
        if not t.is_contiguous():
            return f"must be contiguous, has the strides {t.stride()}"
        return None

    def _first(self, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """Bind the best kernel that can be launched, launch it, and keep it."""
        shapes = forms(self._family, problem)
        out = self._checked(problem, shapes, tensors, out)
        if tensors[0].device.type != self._device_type:
            raise self._complaint(problem, tensors)
        device = tensors[0].get_device()
        self._require_arch(device)
        spare = self._spare.get((problem, device))
        if spare is not None and capturing():  # the model was swapped between the first run and the capture
            spare.launch(tensors, out)
            return out
        reasons = []
        for choice in self._choices(problem):
            if self._programs(problem, choice.kernel_name, device) in _failed:
                continue
            try:
                launch = self.binding(choice.kernel, problem, device)
                launch(tensors, out)
            except Exception as e:
                reasons.append(f"{choice.kernel_name}: {one_line(e)}")
                self._give_up(problem, choice.kernel_name, device, e)
                continue
            while len(self._ready) >= _MAX_BOUND:
                self._ready.pop(next(iter(self._ready)), None)
            self._ready[problem, device] = _Ready(choice.kernel_name, launch, shapes)
            return out
        shown = "; ".join(reasons[:_MAX_REASONS]) or "all of them failed before"
        raise KernelError(f"no kernel of {self._target.name} could be launched for {problem}: {shown}")

    def _choices(self, problem: Problem) -> Any:
        """The selected kernel, then the others in rank: those are asked for only where it fails."""
        selected = self._select(problem)
        yield selected
        yield from (c for c in self._rank(problem) if c.kernel_name != selected.kernel_name)

    def launched(self, problem: Problem, device: int) -> tuple[str, bind.Bound] | None:
        """The kernel that runs a problem on a device, by name, and what launches it; None where nothing did yet."""
        ready = self._ready.get((problem, device))
        return None if ready is None else (ready.kernel_name, ready.launch)

    def binding(self, kernel: Kernel, problem: Problem, device: int) -> bind.Bound:
        """What launches any kernel of the target; nothing is launched, kept, or held against the kernel.

        Raises:
            Exception: whatever Triton or the driver raises where it cannot be compiled or loaded.
        """
        make = bind.interpreted_launches if interpreted() else bind.loaded_launches
        return make(self._family, kernel, problem, self._target.dtype, device)

    def _require_arch(self, device: int) -> None:
        if device >= 0 and (arch := arch_of(device)) != self._target.arch:
            raise KernelError(f"{self._target.name} runs on {self._target.arch}, device {device} is {arch}")

    def _programs(self, problem: Problem, kernel_name: str, device: int) -> tuple[tuple[Program, ...], int]:
        """What a kernel runs for a problem, and for every other of like alignment."""
        t = self._target
        kernel = Kernel.from_config(kernel_name.removeprefix(f"{t.op}_{t.variant}_{t.dtype}_"))
        return self._family.programs(kernel, problem, t.dtype), device

    def _give_up(self, problem: Problem, kernel_name: str, device: int, error: Exception) -> None:
        """Note that a kernel failed; what fails inside a graph's capture or for want of memory may work elsewhere.

        Raises:
            Exception: `error`, where the device's context is lost: no kernel can run any more.
        """
        captured = device >= 0 and torch.cuda.is_current_stream_capturing()
        if device >= 0 and not captured:
            try:
                torch.cuda.synchronize(device)
            except Exception:
                raise error from None
        self._ready.pop((problem, device), None)
        if not captured and not isinstance(error, torch.OutOfMemoryError):
            _failed.add(self._programs(problem, kernel_name, device))
        _log.warning("%s failed, the next in rank is launched: %s", kernel_name, one_line(error))


def arch_of(device: int) -> str:
    """The arch of a CUDA device by its index, as targets name it: ``sm90``, ``gfx942``."""
    target = triton.runtime.driver.active.get_current_target
    with torch.cuda.device(device):
        arch = target().arch
    return f"sm{arch}" if isinstance(arch, int) else str(arch).partition(":")[0]
