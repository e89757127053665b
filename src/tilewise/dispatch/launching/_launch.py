"""Launching of Triton kernels and of the vendor's calls on the current stream, given a problem and its tensors.

A dispatcher imports this module at its first run, because it imports torch and triton. The first run of a problem on a
device binds its kernel: it is compiled and loaded, and every argument except the pointers is prepared. Later runs look
up the bound kernel, check the tensors, allocate and launch. They never wait for the device, so a CUDA graph can capture
them; binding cannot be captured, so run each problem once before.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

import torch
import triton

from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _bind as bind
from tilewise.dispatch.launching._launchers import Binding, Bindings, Choice, Rank, Select
from tilewise.dispatch.measuring import is_capturing
from tilewise.errors import KernelError, ProblemError, one_line
from tilewise.kernels import TENSORS, Shape, accepted_shapes
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import RESULT_TYPES, TORCH_TYPES, family_of, interpreted
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)

_MAX_BINDINGS = 4096  # per launcher; a bound kernel takes some KB
_MAX_REASONS = 3
_shape = attrgetter("shape")

# (programs of a kernel, or a call and its problem; device) that failed in this process and are not tried again.
# Beyond this number the least
# recently used failures are forgotten, and their kernels may be tried again.
MAX_FAILURES = 8192
_failed: Recent[tuple[Hashable, int], bool] = Recent(MAX_FAILURES)


class TorchLauncher:
    """A launcher of Triton kernels and of the vendor's calls for problems of one target.

    It keeps the answers of `select`, so a dispatcher makes a new launcher when its model changes. Threads may share a
    launcher.

    Tensors are contiguous, of the target's dtype, and on one device; the result has the dtype of the operands, or bf16
    for fp8. Operands that do not begin at a multiple of 16 bytes are copied before, and such a result after the launch.

    ============ ======================================== ===================
    variant      operands                                 result
    ============ ======================================== ===================
    forward      x (N, Di, Hi, Wi, C), w (K, Z, Y, X, C/G) y (N, Do, Ho, Wo, K)
    bwd_data     dy, w                                    dx
    bwd_weight   dy, x                                    dw
    universal    a (M, K), b (K, N); transposed where     c (M, N)
                 the layout says ``c``
    ============ ======================================== ===================

    The tensors of a 2D convolution may all omit the depth axis (Di, Z, Do). `out` must not overlap the operands.

    Args:
        target: to run problems of.
        select: returns the kernel to launch for a problem.
        rank: returns all kernels for a problem, best first; called if the selected kernel fails.
        spare: bindings of an earlier launcher, used only during a capture, when nothing can be bound.
    """

    def __init__(self, target: Target, select: Select, rank: Rank, spare: Bindings | None = None) -> None:
        self._target = target
        self._select, self._rank = select, rank
        self._family, self._tensors = family_of(target.op, target.variant), TENSORS[target.op, target.variant]
        self._dtype = TORCH_TYPES[target.dtype]
        self._result_dtype = TORCH_TYPES[RESULT_TYPES[target.dtype]]
        self._device_type = "cpu" if interpreted() else "cuda"
        self._bindings: dict[tuple[Problem, int], Binding] = {}
        self._spare = spare or {}

    def run(self, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """Launch the kernel for `problem` on the current stream of the tensors' device.

        Raises:
            ProblemError: a tensor does not belong to the problem; `.field` names it.
            KernelError: no kernel supports the problem or could be launched, or the device has another arch.
        """
        try:
            binding = self._bindings[problem, tensors[0].get_device()]
        except (KeyError, IndexError, AttributeError):
            return self._first_run(problem, tensors, out)
        if out is None and binding.returns is not None:
            self._check_operands(problem, binding.shapes, tensors)
            try:
                return binding.returns(tensors)
            except Exception as e:
                self._give_up(problem, binding.kernel_name, tensors[0].get_device(), e)
                return self._first_run(problem, tensors, out)
        out = self._checked_result(problem, binding.shapes, tensors, out)
        try:
            binding.launch(tensors, out)
        except Exception as e:
            self._give_up(problem, binding.kernel_name, tensors[0].get_device(), e)
            return self._first_run(problem, tensors, out)
        return out

    @property
    def bindings(self) -> Bindings:
        """Bound kernels for the `spare` of a later launcher."""
        bindings = {**self._spare, **self._bindings}
        return dict(islice(bindings.items(), max(len(bindings) - _MAX_BINDINGS, 0), None))

    def launched(self, problem: Problem, device: int) -> tuple[str, bind.BoundKernel] | None:
        """Return the kernel that runs a problem on a device, by name, with its launch; None before the first run."""
        binding = self._bindings.get((problem, device))
        return None if binding is None else (binding.kernel_name, binding.launch)

    def bind(self, kernel: Kernel | VendorCall, problem: Problem, device: int) -> bind.BoundKernel:
        """Bind any kernel of the target, without launching or keeping it; a failure does not count against it.

        Raises:
            Exception: any error of Triton or the driver while compiling or loading.
        """
        if isinstance(kernel, VendorCall):
            return bind.VendorLaunch(kernel, problem, self._target.variant)
        make = bind.interpreted_launches if interpreted() else bind.loaded_launches
        return make(self._family, kernel, problem, self._target.dtype, device)

    def _checked_result(
        self, problem: Problem, shapes: Mapping[tuple[Shape, ...], Shape], tensors: Sequence[torch.Tensor],
        out: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Check all tensors, and return `out` or a new tensor for the result."""
        result = self._check_operands(problem, shapes, tensors)
        if out is None:
            return torch.empty(result, dtype=self._result_dtype, device=tensors[0].device)
        device = tensors[0].get_device()
        if (
            not isinstance(out, torch.Tensor)
            or out.dtype is not self._result_dtype
            or out.get_device() != device
            or out.shape != result
            or not out.is_contiguous()
        ):
            fault = self._fault(out, (result,), self._result_dtype, tensors[0].device)
            raise ProblemError(self._tensors.names[-1], f"out {fault}")
        return out

    def _check_operands(
        self, problem: Problem, shapes: Mapping[tuple[Shape, ...], Shape], tensors: Sequence[torch.Tensor]
    ) -> Shape:
        """Check the operands, and return the shape of the result."""
        try:
            result = shapes[tuple(map(_shape, tensors))]
            device, dtype = tensors[0].get_device(), self._dtype
            for t in tensors:
                if t.dtype is not dtype or t.get_device() != device or not t.is_contiguous():
                    raise self._operand_error(problem, tensors)
        except (KeyError, AttributeError):
            raise self._operand_error(problem, tensors) from None
        return result

    def _operand_error(self, problem: Problem, tensors: Sequence[torch.Tensor]) -> ProblemError:
        """Return the error that names the first wrong operand."""
        names, allowed = self._tensors.names[:-1], list(accepted_shapes(self._tensors, problem))
        if len(tensors) != len(names):
            return ProblemError("tensors", f"{self._target.name} takes {' and '.join(names)}, got {len(tensors)}")
        for i, (name, t) in enumerate(zip(names, tensors, strict=True)):
            device = getattr(tensors[0], "device", None)
            fault = self._fault(t, tuple(form[i] for form in allowed), self._dtype, device)
            if fault:
                return ProblemError(name, fault)
        got = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(names, tensors, strict=True))
        return ProblemError("tensors", f"all with a depth axis or none, got {got}")

    def _fault(self, t: object, shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device | None) -> str | None:
        """Return the rule that a tensor breaks, or None."""
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

    def _first_run(self, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """Bind the best kernel that can be launched, launch it, and keep the binding."""
        shapes = accepted_shapes(self._tensors, problem)
        out = self._checked_result(problem, shapes, tensors, out)
        if tensors[0].device.type != self._device_type:
            raise self._operand_error(problem, tensors)
        device = tensors[0].get_device()
        self._require_arch(device)
        spare = self._spare.get((problem, device))
        if spare is not None and is_capturing():  # the model was swapped between the first run and the capture
            spare.launch(tensors, out)
            return out
        reasons = []
        for choice in self._choices(problem):
            if _failed.get(self._programs(problem, choice.kernel_name, device)):
                continue
            try:
                launch = self.bind(choice.kernel, problem, device)
                launch(tensors, out)
            except Exception as e:
                reasons.append(f"{choice.kernel_name}: {one_line(e)}")
                self._give_up(problem, choice.kernel_name, device, e)
                continue
            while len(self._bindings) >= _MAX_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)), None)
            self._bindings[problem, device] = Binding(choice.kernel_name, launch, shapes)
            return out
        summary = "; ".join(reasons[:_MAX_REASONS]) or "all of them failed before"
        raise KernelError(f"no kernel of {self._target.name} could be launched for {problem}: {summary}")

    def _choices(self, problem: Problem) -> Iterator[Choice]:
        """Yield the selected kernel, then the others by rank, which is only computed if the selected one fails.

        Candidates that are data only cannot be launched, and are skipped.
        """
        selected = self._select(problem)
        every = itertools.chain([selected], (c for c in self._rank(problem) if c.kernel_name != selected.kernel_name))
        yield from (choice for choice in every if isinstance(choice.kernel, Kernel | VendorCall))

    def _require_arch(self, device: int) -> None:
        if device >= 0 and (arch := device_arch(device)) != self._target.arch:
            raise KernelError(f"{self._target.name} runs on {self._target.arch}, device {device} is {arch}")

    def _programs(self, problem: Problem, kernel_name: str, device: int) -> tuple[Hashable, int]:
        """Return the programs that a kernel runs for a problem, which problems of equal alignment share; or a call."""
        t = self._target
        config = kernel_name.removeprefix(f"{t.op}_{t.variant}_{t.dtype}_")
        if config.startswith(f"{VendorCall.backend_name}_"):
            return (config, problem), device
        return self._family.programs(Kernel.from_config(config), problem, t.dtype), device

    def _give_up(self, problem: Problem, kernel_name: str, device: int, error: Exception) -> None:
        """Drop a kernel that failed, and do not try it again on these programs.

        A failure during a capture or for lack of memory is not held against the kernel.

        Raises:
            Exception: `error`, if the device's context is lost, as no kernel can run any more.
        """
        captured = device >= 0 and torch.cuda.is_current_stream_capturing()
        if device >= 0 and not captured:
            try:
                torch.cuda.synchronize(device)
            except Exception:
                raise error from None
        self._bindings.pop((problem, device), None)
        if not captured and not isinstance(error, torch.OutOfMemoryError):
            _failed.put(self._programs(problem, kernel_name, device), True)
        _log.warning("%s failed, the next in rank is launched: %s", kernel_name, one_line(error))


def device_arch(device: int) -> str:
    """Return the arch of a CUDA device, given its index, as targets name it: ``sm90``, ``gfx942``."""
    target = triton.runtime.driver.active.get_current_target
    with torch.cuda.device(device):
        arch = target().arch
    return f"sm{arch}" if isinstance(arch, int) else str(arch).partition(":")[0]
