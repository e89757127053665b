"""Launching of CK Tile's kernels through its C libraries, given a problem and its arrays.

A library runs the kernel that it selects itself. A library with one kernel therefore always runs that kernel. A library
with many kernels is asked for its choice; it is used if it chooses the selected kernel, or as the last resort.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tilewise.dispatch.background import register_after_fork
from tilewise.dispatch.launching._launchers import Bindings, Rank, Select, Tensor
from tilewise.dispatch.launching._padding import Groups, cut_into, enlarged, padded_problems
from tilewise.errors import ConfigError, KernelError, LibraryError, ProblemError
from tilewise.kernels import EMPTY_KIND, NO_EPILOGUE, TENSORS, Epilogue, EpilogueKind, Shape, accepted_shapes
from tilewise.kernels.ck import (
    ArrayInfo,
    CkKernel,
    CkLibraries,
    CkLibrary,
    array_info,
    chosen_kernel,
    empty_result,
    operand_elements,
    parse_name,
    result_elements,
)
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)

_ALIGNMENT = 16  # bytes; the widest loads read device memory in such units
_MAX_KEPT = 4096  # problems whose library is remembered, and remembered failures
_MAX_REASONS = 3


class _ArrayRule(NamedTuple):
    """The properties that an array must have; a place of None allows any."""

    name: str
    shapes: Sequence[Shape]
    elements: Sequence[str]
    place: str | None


class CkLauncher:
    """A launcher of CK Tile's kernels for problems of one target, through the libraries that the environment names.

    Arrays are contiguous, of the target's dtype, and all in the memory that the libraries take: NumPy's or PyTorch's on
    the host, PyTorch's on a device. NumPy has no bf16 and fp8: uint16 and uint8 stand for their bits. Names and shapes
    are those of :data:`tilewise.kernels.TENSORS`; fp8 operands give an fp16 result.

    Args:
        target: to run problems of.
        select: returns the kernel to launch for a problem.
        rank: returns all kernels for a problem, best first; called if the selected kernel fails.

    Raises:
        KernelError: the environment names no libraries.
    """

    def __init__(self, target: Target, select: Select, rank: Rank) -> None:
        self._target, self._select, self._rank = target, select, rank
        self._tensors = TENSORS[target.op, target.variant]
        try:
            self._libraries = CkLibraries.find(target.op)
        except ConfigError as e:
            raise KernelError(f"no kernel of {target.name} can be launched: {e}") from e
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Forget all libraries in a forked child, which has to open its own."""
        self._open: list[CkLibrary] | None = None
        self._ready: dict[Problem, tuple[str, CkLibrary]] = {}
        self._failed: set[tuple[Problem, str]] = set()
        self.failures = 0
        self._larger: dict[Problem, Problem | None] = {}

    @property
    def bindings(self) -> Bindings:
        """No bindings: libraries stay open anyway."""
        return {}

    def run(
        self, problem: Problem, tensors: Sequence[Tensor], out: Tensor | None, epilogue: Epilogue = NO_EPILOGUE
    ) -> Tensor:
        """Run the selected kernel; if it fails, run the next in rank, and do not try it again on the problem.

        A problem that no kernel supports is padded with zeros to the nearest one that a kernel supports, and its result
        is cut: a matrix product along each size, a convolution in the channels of each group.

        Raises:
            ProblemError: an array does not belong to the problem, or there is an epilogue; `.field` names it.
            KernelError: no kernel supports the problem or could be launched, or the arrays lie in another memory than
                the libraries take.
        """
        if epilogue is not NO_EPILOGUE:
            raise ProblemError("epilogue", "kernels of CK Tile compute none here; compute it on their result")
        if (larger := self._padded(problem)) is not None:
            _, _, out = self._checked(problem, tensors, out)
            shapes = self._tensors.operands(larger)
            *groups, of_result = (Groups.of(name, problem) for name in self._tensors.names)
            operands = [enlarged(t, s, g) for t, s, g in zip(tensors, shapes, groups, strict=True)]
            cut_into(out, self._run(larger, operands, None), of_result)
            return out
        return self._run(problem, tensors, out)

    def direct(self, problem: Problem, device: int, kind: EpilogueKind) -> None:
        """Return None: every call checks its arrays."""

    def _padded(self, problem: Problem) -> Problem | None:
        """Return the problem to run in place of an unsupported one; None if the problem needs or has none."""
        if problem in self._ready:
            return None
        if problem not in self._larger:
            if len(self._larger) >= _MAX_KEPT:
                self._larger.clear()
            self._larger[problem] = None if self._is_supported(problem) else self._nearest(problem)
        return self._larger[problem]

    def _nearest(self, problem: Problem) -> Problem | None:
        """Return the smallest larger problem that a kernel of the pool and of a library supports, or None."""
        kernels: list[CkKernel] = []
        for library in self._opened():
            try:
                kernels += [parse_name(name).kernel for name in library.kernel_names()]
            except (KernelError, LibraryError) as e:
                _log.warning("problems are not padded for %s: %s", library.path, e)
        return next((p for p in padded_problems(problem, kernels) if self._is_supported(p)), None)

    def _is_supported(self, problem: Problem) -> bool:
        """Return whether a kernel supports the problem; of convolutions, whose names lack widths, ask the libraries."""
        try:
            supported = bool(self._rank(problem, EMPTY_KIND))
        except KernelError:
            return False
        return supported and (self._target.op != "grouped_conv" or any(self._chosen(problem, [])))

    def _run(self, problem: Problem, tensors: Sequence[Tensor], out: Tensor | None) -> Tensor:
        operands, result, out = self._checked(problem, tensors, out)
        reasons: list[str] = []
        for name, library in self._candidates(problem, reasons):
            try:
                self._launch(library, problem, operands, result)
            except (KernelError, LibraryError) as e:
                self._ready.pop(problem, None)
                if len(self._failed) >= _MAX_KEPT:
                    self._failed.clear()  # so they are tried again
                self._failed.add((problem, name))
                self.failures += 1
                reasons.append(str(e))
                _log.warning("%s failed, the next in rank is launched: %s", name, e)
                continue
            if problem not in self._ready:
                while len(self._ready) >= _MAX_KEPT:
                    self._ready.pop(next(iter(self._ready)), None)
                self._ready[problem] = name, library
            return out
        summary = "; ".join(reasons[:_MAX_REASONS]) or "all of them failed before"
        raise KernelError(f"no kernel of {self._target.name} could be launched for {problem}: {summary}")

    def _candidates(self, problem: Problem, reasons: list[str]) -> Iterator[tuple[str, CkLibrary]]:
        """Yield the kernel that ran last, then those in rank that a library runs, then the libraries' own choices."""
        ready = self._ready.get(problem)
        if ready is not None:
            yield ready
        runnable, selected = dict(self._chosen(problem, reasons)), self._select(problem, EMPTY_KIND).kernel_name
        if selected not in runnable:
            reasons.append(f"no library runs {selected}{_split_note(selected)}")
            _log.warning("%s: the next in rank is launched", reasons[-1])
        ranked = (choice.kernel_name for choice in self._rank(problem, EMPTY_KIND))
        for name in dict.fromkeys((selected, *ranked, *runnable)):
            if name in runnable and (problem, name) not in self._failed:
                yield name, runnable[name]

    def _chosen(self, problem: Problem, reasons: list[str]) -> Iterator[tuple[str, CkLibrary]]:
        """Yield each library that supports the problem, with the kernel that it runs."""
        for library in self._opened():
            try:
                name = chosen_kernel(library, problem, self._target)
            except (KernelError, LibraryError) as e:
                reasons.append(str(e))
                continue
            if name is not None:
                yield name, library

    def _opened(self) -> Sequence[CkLibrary]:
        """Return all libraries that can be opened, largest first, so that smaller ones win when a dict is built."""
        if self._open is None:
            opened = []
            for file in self._libraries.files:
                try:
                    opened.append(self._libraries.open(file))
                except (ConfigError, LibraryError) as e:
                    _log.warning("a library is left out: %s", e)
            self._open = sorted(opened, key=lambda library: -library.kernel_count)
        return self._open

    def _launch(self, library: CkLibrary, problem: Problem, operands: Sequence[ArrayInfo], result: ArrayInfo) -> None:
        pointers = [array.pointer for array in operands]
        if self._libraries.memory == "host":
            library.run(problem, self._target.variant, pointers, result.pointer)
            return
        import torch  # the tensors are PyTorch's, so it is loaded

        with torch.cuda.device(result.place):
            stream = torch.cuda.current_stream().cuda_stream
            library.run(problem, self._target.variant, pointers, result.pointer, stream)

    def _checked(
        self, problem: Problem, tensors: Sequence[Tensor], out: Tensor | None
    ) -> tuple[list[ArrayInfo], ArrayInfo, Tensor]:
        """Check all arrays; return the operands, the result, and the array to return to the caller."""
        *names, result_name = self._tensors.names
        if len(tensors) != len(names):
            raise ProblemError("tensors", f"{self._target.name} takes {' and '.join(names)}, got {len(tensors)}")
        allowed = accepted_shapes(self._tensors, problem)
        dtype, arch = self._target.dtype, self._target.arch
        elements, operands = operand_elements(dtype, arch), list[ArrayInfo]()
        for i, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
            place = operands[0].place if operands else None
            operands.append(self._array(tensor, _ArrayRule(name, [form[i] for form in allowed], elements, place)))
        shape = allowed.get(tuple(array.shape for array in operands))
        if shape is None:
            raise ProblemError("tensors", "all with a depth axis or none")
        if out is None:
            out = empty_result(shape, dtype, tensors[0])
        rule = _ArrayRule(result_name, [shape], result_elements(dtype, arch), operands[0].place)
        result = self._array(out, rule)
        if not result.writeable:
            raise ProblemError(result_name, "out must be writeable")
        return operands, result, out

    def _array(self, value: Tensor, rule: _ArrayRule) -> ArrayInfo:
        name, array = rule.name, array_info(value)
        if array is None:
            raise ProblemError(name, f"must be a NumPy array or a torch.Tensor, got {type(value).__name__}")
        memory = "host" if array.place == "host" else "device"
        if memory != self._libraries.memory:
            raise KernelError(f"{name} lies in {memory} memory, the libraries take {self._libraries.memory} memory")
        if rule.place not in (None, array.place):
            raise ProblemError(name, f"must be on {rule.place}, is on {array.place}")
        if array.element not in rule.elements:
            raise ProblemError(name, f"must be of {' or '.join(rule.elements)}, is of {array.element}")
        if array.shape not in rule.shapes:
            raise ProblemError(name, f"must have the shape {' or '.join(map(str, rule.shapes))}, has {array.shape}")
        if not array.contiguous:
            raise ProblemError(name, "must be contiguous")
        if memory == "device" and array.pointer % _ALIGNMENT:
            raise ProblemError(name, f"must begin at a multiple of {_ALIGNMENT} bytes")
        return array


def _split_note(name: str) -> str:
    """Return why a kernel that splits K needs a library of its own, "" for the name of another kernel."""
    try:
        if not parse_name(name).kernel.split_k:
            return ""
    except KernelError:  # a kernel of another backend, whose pool mixes several
        return ""
    return ", and CK Tile's C functions take no split of K: name a library whose kernel's name states the split"
