"""Running CK Tile's kernels through its C libraries: from a problem and its arrays to a library's run function.

A library runs what it selects itself. One that holds a single kernel therefore is that kernel; one that holds many is
asked for the kernel that it would choose, and serves where that is the one to launch, or as the last resort.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from tilewise.dispatch import forks
from tilewise.dispatch.launchers import Rank, Select
from tilewise.errors import ConfigError, KernelError, LibraryError, ProblemError
from tilewise.kernels.ck.arrays import Array, array_of, empty, operand_elements, result_elements
from tilewise.kernels.ck.libraries import Libraries, chosen_kernel
from tilewise.kernels.ck.library import Library
from tilewise.kernels.operands import TENSORS, Shape, forms
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)

_ALIGNMENT = 16  # bytes; device memory is read by the widest loads
_MAX_KEPT = 4096  # problems whose library is remembered, and failures
_MAX_REASONS = 3


class CkLauncher:
    """Runs problems of one target through the libraries that the environment names.

    Arrays are contiguous, of the target's dtype, and all in the memory that the libraries take: NumPy's or PyTorch's on
    the host, PyTorch's on a device. bf16 and fp8 have no NumPy type: uint16 and uint8 stand for their bits. Names and
    shapes are those of :data:`tilewise.kernels.operands.TENSORS`; fp8 gives fp16.

    Args:
        target: what is run.
        select: problem -> the kernel to launch.
        rank: problem -> all kernels, best first; asked where the selected one fails.

    Raises:
        KernelError: the environment names no libraries.
    """

    def __init__(self, target: Target, select: Select, rank: Rank) -> None:
        self._target, self._select, self._rank = target, select, rank
        self._tensors = TENSORS[target.op, target.variant]
        try:
            self._libraries = Libraries.find(target.op)
        except ConfigError as e:
            raise KernelError(f"no kernel of {target.name} can be launched: {e}") from e
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """In a child, which opens the libraries anew."""
        self._open: list[Library] | None = None
        self._ready: dict[Problem, tuple[str, Library]] = {}
        self._failed: set[tuple[Problem, str]] = set()

    @property
    def bound(self) -> dict[Any, Any]:
        """Nothing: libraries stay open anyway."""
        return {}

    def run(self, problem: Problem, tensors: Sequence[Any], out: Any) -> Any:
        """Run the selected kernel; one that fails is followed by the next in rank, and not tried again on the problem.

        Raises:
            ProblemError: an array does not belong to the problem; `.field` names it.
            KernelError: no kernel supports the problem, none could be launched, or the arrays lie in other memory than
                the libraries take.
        """
        operands, result, out = self._checked(problem, tensors, out)
        reasons: list[str] = []
        for name, library in self._candidates(problem, reasons):
            try:
                self._launch(library, problem, operands, result)
            except (KernelError, LibraryError) as e:
                self._ready.pop(problem, None)
                if len(self._failed) >= _MAX_KEPT:
                    self._failed.clear()  # they are tried again
                self._failed.add((problem, name))
                reasons.append(str(e))
                _log.warning("%s failed, the next in rank is launched: %s", name, e)
                continue
            if problem not in self._ready:
                while len(self._ready) >= _MAX_KEPT:
                    self._ready.pop(next(iter(self._ready)), None)
                self._ready[problem] = name, library
            return out
        shown = "; ".join(reasons[:_MAX_REASONS]) or "all of them failed before"
        raise KernelError(f"no kernel of {self._target.name} could be launched for {problem}: {shown}")

    def _candidates(self, problem: Problem, reasons: list[str]) -> Iterator[tuple[str, Library]]:
        """What ran last time; else the kernels in rank that a library runs, then what libraries of many choose."""
        ready = self._ready.get(problem)
        if ready is not None:
            yield ready
        there, selected = dict(self._chosen(problem, reasons)), self._select(problem).kernel_name
        if selected not in there:
            reasons.append(f"no library runs {selected}")
            _log.warning("no library runs %s: the next in rank is launched", selected)
        ranked = (choice.kernel_name for choice in self._rank(problem))
        for name in dict.fromkeys((selected, *ranked, *there)):
            if name in there and (problem, name) not in self._failed:
                yield name, there[name]

    def _chosen(self, problem: Problem, reasons: list[str]) -> Iterator[tuple[str, Library]]:
        """Each library that supports the problem by the kernel that it runs it with; of two, that of fewer kernels."""
        for library in self._opened():
            try:
                name = chosen_kernel(library, problem, self._target)
            except (KernelError, LibraryError) as e:
                reasons.append(str(e))
                continue
            if name is not None:
                yield name, library

    def _opened(self) -> Sequence[Library]:
        """All libraries that can be opened, those of many kernels first: of equal kernels the last one counts."""
        if self._open is None:
            opened = []
            for file in self._libraries.files:
                try:
                    opened.append(self._libraries.open(file))
                except (ConfigError, LibraryError) as e:
                    _log.warning("a library is left out: %s", e)
            self._open = sorted(opened, key=lambda library: -library.kernel_count)
        return self._open

    def _launch(self, library: Library, problem: Problem, operands: Sequence[Array], result: Array) -> None:
        pointers = [array.pointer for array in operands]
        if self._libraries.memory == "host":
            library.run(problem, self._target.variant, pointers, result.pointer)
            return
        import torch  # whose tensors these are

        with torch.cuda.device(result.place):
            stream = torch.cuda.current_stream().cuda_stream
            library.run(problem, self._target.variant, pointers, result.pointer, stream)

    def _checked(self, problem: Problem, tensors: Sequence[Any], out: Any) -> tuple[list[Array], Array, Any]:
        """The operands, the result, and the array that is returned, once all are known to be right."""
        *names, result_name = self._tensors.names
        if len(tensors) != len(names):
            raise ProblemError("tensors", f"{self._target.name} takes {' and '.join(names)}, got {len(tensors)}")
        allowed = forms(self._tensors, problem)
        dtype, arch = self._target.dtype, self._target.arch
        elements, operands = operand_elements(dtype, arch), list[Array]()
        for i, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
            place = operands[0].place if operands else None
            operands.append(self._array(name, tensor, [form[i] for form in allowed], elements, place))
        shape = allowed.get(tuple(array.shape for array in operands))
        if shape is None:
            raise ProblemError("tensors", "all with a depth axis or none")
        if out is None:
            out = empty(shape, dtype, tensors[0])
        result = self._array(result_name, out, [shape], result_elements(dtype, arch), operands[0].place)
        if not result.writeable:
            raise ProblemError(result_name, "out must be writeable")
        return operands, result, out

    def _array(
        self, name: str, value: Any, shapes: Sequence[Shape], elements: Sequence[str], place: str | None
    ) -> Array:  # fmt: skip
        array = array_of(value)
        if array is None:
            raise ProblemError(name, f"must be a NumPy array or a torch.Tensor, got {type(value).__name__}")
        memory = "host" if array.place == "host" else "device"
        if memory != self._libraries.memory:
            raise KernelError(f"{name} lies in {memory} memory, the libraries take {self._libraries.memory} memory")
        if place not in (None, array.place):
            raise ProblemError(name, f"must be on {place}, is on {array.place}")
        if array.element not in elements:
            raise ProblemError(name, f"must be of {' or '.join(elements)}, is of {array.element}")
        if array.shape not in shapes:
            raise ProblemError(name, f"must have the shape {' or '.join(map(str, shapes))}, has {array.shape}")
        if not array.contiguous:
            raise ProblemError(name, "must be contiguous")
        if memory == "device" and array.pointer % _ALIGNMENT:
            raise ProblemError(name, f"must begin at a multiple of {_ALIGNMENT} bytes")
        return array
