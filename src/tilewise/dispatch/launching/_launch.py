"""Launching of Triton kernels and of the vendor's calls on the current stream, given a problem and its tensors.

A dispatcher imports this module at its first run, because it imports torch and triton. The first run of a problem on a
device binds its kernel: it is compiled and loaded, and every argument except the pointers is prepared. Later runs look
up the bound kernel, check the tensors, allocate and launch. They never wait for the device, so a CUDA graph can capture
them; binding cannot be captured, so run each problem once before.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

import torch
import triton

from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _bind as bind
from tilewise.dispatch.launching._launchers import Binding, BindingKey, Bindings, Choice, Rank, Select
from tilewise.dispatch.measuring import is_capturing
from tilewise.errors import KernelError, ProblemError, one_line
from tilewise.kernels import (
    EMPTY_KIND,
    EPILOGUE_VARIANTS,
    NO_EPILOGUE,
    TENSORS,
    Epilogue,
    EpilogueKind,
    Shape,
    accepted_shapes,
)
from tilewise.kernels.triton import TRITON, Kernel
from tilewise.kernels.triton.programs import RESULT_TYPES, TORCH_TYPES, family_of, interpreted
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)

_MAX_BINDINGS = 4096  # per launcher; a bound kernel takes some KB
_MAX_REASONS = 3
_shape = attrgetter("shape")

# (programs of a kernel, or a call and its problem; device) that failed in this process and are not tried again.
# Beyond this number the least recently used failures are forgotten, and their kernels may be tried again.
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

    The tensors of a 2D convolution may all omit the depth axis (Di, Z, Do). `out` must not overlap the operands, nor
    the tensors of an epilogue, which have the dtype of the result.

    Args:
        target: to run problems of.
        select: returns the kernel to launch for a problem with an epilogue.
        rank: returns all kernels for it, best first; called if the selected kernel fails.
        spare: bindings of an earlier launcher, used only during a capture, when nothing can be bound.
    """

    def __init__(self, target: Target, select: Select, rank: Rank, spare: Bindings | None = None) -> None:
        self._target = target
        self._select, self._rank = select, rank
        self._family, self._tensors = family_of(target.op, target.variant), TENSORS[target.op, target.variant]
        self._dtype = TORCH_TYPES[target.dtype]
        self._result_dtype = TORCH_TYPES[RESULT_TYPES[target.dtype]]
        self._device_type = "cpu" if interpreted() else "cuda"
        self._bindings: dict[BindingKey, Binding] = {}
        self._spare = spare or {}
        self.failures = 0

    def run(
        self, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor | None,
        epilogue: Epilogue = NO_EPILOGUE,
    ) -> torch.Tensor:  # fmt: skip
        """Launch the kernel for `problem` on the current stream of the tensors' device.

        Raises:
            ProblemError: a tensor does not belong to the problem, or the variant has no epilogue; `.field` names it.
            KernelError: no kernel supports the problem or could be launched, or the device has another arch.
        """
        try:
            binding = self._bindings[problem, tensors[0].get_device(), epilogue.kind]
        except (KeyError, IndexError, AttributeError):
            return self._first_run(problem, tensors, out, epilogue)
        result = self._check(problem, binding.shapes, tensors, epilogue)
        passed, returns = (*tensors, *epilogue.tensors), binding.returns if out is None else None
        if returns is None:
            out = self._result(result, tensors, out)
        try:
            if out is None and returns is not None:
                return returns(passed)
            binding.launch(passed, out)
        except Exception as e:
            self._give_up(self._key(problem, tensors, epilogue), binding.kernel_name, e)
            return self._first_run(problem, tensors, out, epilogue)
        return out

    @property
    def bindings(self) -> Bindings:
        """Bound kernels for the `spare` of a later launcher."""
        bindings = {**self._spare, **self._bindings}
        return dict(islice(bindings.items(), max(len(bindings) - _MAX_BINDINGS, 0), None))

    def launched(self, problem: Problem, device: int) -> tuple[str, bind.BoundKernel] | None:
        """Return the kernel that runs a problem on a device, by name, with its launch; None before the first run."""
        binding = self._bindings.get((problem, device, EMPTY_KIND))
        return None if binding is None else (binding.kernel_name, binding.launch)

    def direct(self, problem: Problem, device: int, kind: EpilogueKind) -> bind.DirectCall | None:
        """Return the kernel that runs a problem, for unchecked tensors as PyTorch has them; None before a run."""
        binding = self._bindings.get((problem, device, kind))
        return None if binding is None else binding.direct

    def _request(self, problem: Problem, device: int, kind: EpilogueKind) -> bind.Request:
        """Return the request for programs, which depend on less of an epilogue's kind than the choice of a kernel."""
        return bind.Request(self._family, self._target, problem, kind.computed, device)

    def bind(
        self, kernel: Kernel | VendorCall, problem: Problem, device: int, kind: EpilogueKind = EMPTY_KIND
    ) -> bind.BoundKernel:
        """Bind any kernel of the target, without launching or keeping it; a failure does not count against it.

        Raises:
            Exception: any error of Triton or the driver while compiling or loading.
        """
        request = self._request(problem, device, kind)
        if isinstance(kernel, VendorCall):
            return bind.VendorLaunch(request, kernel)
        make = bind.interpreted_launches if interpreted() else bind.loaded_launches
        if TRITON.leaves(kernel, problem, self._target, request.kind).is_empty:
            return make(request, kernel)
        return bind.followed_by_pass(make(replace(request, kind=EMPTY_KIND), kernel), request)

    def _result(self, shape: Shape, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> torch.Tensor:
        """Return `out` after a check, or a new tensor for the result."""
        if out is None:
            return torch.empty(shape, dtype=self._result_dtype, device=tensors[0].device)
        if not self._is_like_result(out, shape, tensors):
            fault = self._fault(out, (shape,), self._result_dtype, tensors[0].device)
            raise ProblemError(self._tensors.names[-1], f"out {fault}")
        return out

    def _is_like_result(self, t: object, shape: Shape, tensors: Sequence[torch.Tensor]) -> bool:
        return (
            isinstance(t, torch.Tensor)
            and t.dtype is self._result_dtype
            and t.get_device() == tensors[0].get_device()
            and t.shape == shape
            and t.is_contiguous()
        )

    def _check(
        self, problem: Problem, shapes: Mapping[tuple[Shape, ...], Shape], tensors: Sequence[torch.Tensor],
        epilogue: Epilogue,
    ) -> Shape:  # fmt: skip
        """Check the operands and the tensors of the epilogue, and return the shape of the result."""
        result = self._check_operands(problem, shapes, tensors)
        if epilogue is NO_EPILOGUE:
            return result
        if (self._target.op, self._target.variant) not in EPILOGUE_VARIANTS:
            raise ProblemError("epilogue", f"{self._target.op} {self._target.variant} has none; compute it afterwards")
        for name, t, shape in (("bias", epilogue.bias, result[-1:]), ("residual", epilogue.residual, result)):
            if t is not None and not self._is_like_result(t, shape, tensors):
                raise ProblemError(name, str(self._fault(t, (shape,), self._result_dtype, tensors[0].device)))
        return result

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

    def _first_run(
        self, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor | None, epilogue: Epilogue
    ) -> torch.Tensor:
        """Bind the best kernel that can be launched, launch it, and keep the binding."""
        shapes = accepted_shapes(self._tensors, problem)
        out = self._result(self._check(problem, shapes, tensors, epilogue), tensors, out)
        if tensors[0].device.type != self._device_type:
            raise self._operand_error(problem, tensors)
        key, passed = self._key(problem, tensors, epilogue), (*tensors, *epilogue.tensors)
        self._require_arch(key[1])
        spare = self._spare.get(key)
        if spare is not None and is_capturing():  # the model was swapped between the first run and the capture
            spare.launch(passed, out)
            return out
        reasons = []
        for choice in self._choices(problem, epilogue.kind):
            if _failed.get(self._programs(key, choice.kernel_name)):
                continue
            try:
                launch = self.bind(choice.kernel, *key)
                launch(passed, out)
            except Exception as e:
                reasons.append(f"{choice.kernel_name}: {one_line(e)}")
                self._give_up(key, choice.kernel_name, e)
                continue
            while len(self._bindings) >= _MAX_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)), None)
            direct = bind.direct_call(self._request(*key), launch)
            self._bindings[key] = Binding(choice.kernel_name, launch, shapes, direct)
            return out
        summary = "; ".join(reasons[:_MAX_REASONS]) or "all of them failed before"
        raise KernelError(f"no kernel of {self._target.name} could be launched for {problem}: {summary}")

    def _choices(self, problem: Problem, kind: EpilogueKind) -> Iterator[Choice]:
        """Yield the selected kernel, then the others by rank, which is only computed if the selected one fails.

        Candidates that are data only cannot be launched, and are skipped.
        """
        selected = self._select(problem, kind)
        if isinstance(selected.kernel, Kernel | VendorCall):
            yield selected
        for choice in self._rank(problem, kind):
            if choice.kernel_name != selected.kernel_name and isinstance(choice.kernel, Kernel | VendorCall):
                yield choice

    def _require_arch(self, device: int) -> None:
        if device >= 0 and (arch := device_arch(device)) != self._target.arch:
            raise KernelError(f"{self._target.name} runs on {self._target.arch}, device {device} is {arch}")

    @staticmethod
    def _key(problem: Problem, tensors: Sequence[torch.Tensor], epilogue: Epilogue) -> BindingKey:
        return problem, tensors[0].get_device(), epilogue.kind

    def _programs(self, key: BindingKey, kernel_name: str) -> tuple[Hashable, int]:
        """Return the programs that a kernel runs for a problem, which problems of equal alignment share; or a call."""
        t, (problem, device, _) = self._target, key
        kind = self._request(*key).kind
        config = kernel_name.removeprefix(f"{t.op}_{t.variant}_{t.dtype}_")
        if config.startswith(f"{VendorCall.backend_name}_"):
            return (config, problem, kind), device
        kernel = Kernel.from_config(config)
        fused = kind if TRITON.leaves(kernel, problem, t, kind).is_empty else EMPTY_KIND
        return self._family.programs(kernel, problem, t.dtype, fused), device

    def _give_up(self, key: BindingKey, kernel_name: str, error: Exception) -> None:
        """Drop a kernel that failed, and do not try it again on these programs.

        A failure during a capture or for lack of memory is not held against the kernel.

        Raises:
            Exception: `error`, if the device's context is lost, as no kernel can run any more.
        """
        device = key[1]
        captured = device >= 0 and torch.cuda.is_current_stream_capturing()
        if device >= 0 and not captured:
            try:
                torch.cuda.synchronize(device)
            except Exception:
                raise error from None
        self._bindings.pop(key, None)
        self.failures += 1
        if not captured and not isinstance(error, torch.OutOfMemoryError):
            _failed.put(self._programs(key, kernel_name), True)
        _log.warning("%s failed, the next in rank is launched: %s", kernel_name, one_line(error))


def device_arch(device: int) -> str:
    """Return the arch of a CUDA device, given its index, as targets name it: ``sm90``, ``gfx942``."""
    target = triton.runtime.driver.active.get_current_target
    with torch.cuda.device(device):
        arch = target().arch
    return f"sm{arch}" if isinstance(arch, int) else str(arch).partition(":")[0]
