"""Command lines of AMD's MIOpenDriver as problem sets: ``MIOpenDriver conv -n 32 -c 64 -H 56 -W 56 -k 64 ...``.

MIOpen logs such a line for each call of an application (``MIOPEN_ENABLE_LOGGING_CMD=1``), so a log of a network is a
list of its problems. A set holds sizes, for any direction, type and layout that is measured; lines that differ in these
only are one problem.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tilewise.collect._plan import Item
from tilewise.errors import DataError, ProblemError
from tilewise.ops import GroupedConvProblem

ENDINGS = (".txt", ".log")

_COMMAND = re.compile(r"MIOpenDriver\s+(\S+)(.*)")
_VERB = re.compile(r"conv(?:fp16|bfp16|int8|fp8|bfp8)?")
_EXAMPLE = "MIOpenDriver conv -n 32 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1"

# Option by letter and word: the dimension that it states, with the driver's default.
_SIZES = {
    ("n", "batchsize"): ("N", 100),
    ("c", "in_channels"): ("C", 3),
    ("k", "out_channels"): ("K", 32),
    ("g", "group_count"): ("G", 1),
    ("H", "in_h"): ("Hi", 32),
    ("W", "in_w"): ("Wi", 32),
    ("y", "fil_h"): ("Y", 3),
    ("x", "fil_w"): ("X", 3),
    ("u", "conv_stride_h"): ("stride_h", 1),
    ("v", "conv_stride_w"): ("stride_w", 1),
    ("p", "pad_h"): ("pad_h", 0),
    ("q", "pad_w"): ("pad_w", 0),
    ("l", "dilation_h"): ("dilation_h", 1),
    ("j", "dilation_w"): ("dilation_w", 1),
}
_DEPTHS = {
    ("!", "in_d"): ("Di", 32),
    ("@", "fil_d"): ("Z", 3),
    ("#", "conv_stride_d"): ("stride_d", 1),
    ("$", "pad_d"): ("pad_d", 0),
    ("^", "dilation_d"): ("dilation_d", 1),
}
# Options that decide whether the sizes mean a plain convolution: the values with which they do.
_PLAIN = {
    ("m", "mode"): ("conv",),
    ("z", "pad_mode"): ("default", "conv"),
    ("Z", "tensor_vect"): ("0",),
    ("_", "spatial_dim"): ("2", "3"),
}
# Options that do not change the sizes: direction, layouts, timing, verification, casts; padding of transposed outputs.
_OTHERS = {
    *(("F", "forw"), ("I", "in_layout"), ("f", "fil_layout"), ("O", "out_layout"), ("r", "pad_val"), ("b", "bias")),
    *(("i", "iter"), ("V", "verify"), ("C", "verification_cache"), ("t", "time"), ("w", "wall"), ("s", "search")),
    *(("P", "printconv"), ("o", "dump_output"), ("d", "in_data"), ("e", "weights"), ("D", "dout_data")),
    *(("a", "in_bias"), ("S", "solution"), ("G", "gpualloc"), ("U", "in_cast_type"), ("R", "wei_cast_type")),
    *(("T", "out_cast_type"), ("%", "trans_output_pad_d"), ("Y", "trans_output_pad_h"), ("X", "trans_output_pad_w")),
}
_WORDS = {f"-{letter}": word for letter, word in (*_SIZES, *_DEPTHS, *_PLAIN, *_OTHERS)}


def load_driver_file(path: Path, op: str) -> tuple[Item, ...]:
    """Read a file of command lines; see :func:`parse_driver_lines`.

    Raises:
        DataError: the file cannot be read, or a line is no convolution; the message names file and line.
    """
    if op != GroupedConvProblem.op:
        raise DataError(f"{path}: command lines of MIOpenDriver are problems of {GroupedConvProblem.op}, not of {op}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot read the problem set: {e}") from e
    return parse_driver_lines(text, str(path))


def parse_driver_lines(text: str, source: str) -> tuple[Item, ...]:
    """Parse command lines into their problems, each once, in the order of first appearance.

    Args:
        text: one command line a line, whatever precedes ``MIOpenDriver``; blank lines and ``#`` lines are skipped.
        source: path of the text for errors; its name without the ending is the problems' origin.

    Raises:
        DataError: a line is no convolution of MIOpenDriver or an impossible one, or there are no lines. The message
            names `source` and line.
    """
    found: dict[GroupedConvProblem, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            found[_problem(line)] = None
        except (DataError, ProblemError) as e:
            raise DataError(f"{source}, line {number}: {e}") from e
    if not found:
        raise DataError(f"{source}: no problems; expected lines such as {_EXAMPLE}")
    origin = Path(source).stem
    return tuple(Item(problem, origin) for problem in found)


def _problem(line: str) -> GroupedConvProblem:
    """Return the problem of a line.

    Raises:
        DataError: it is no convolution of MIOpenDriver, or an option has a value that tilewise has no problem for.
        ProblemError: a size is impossible.
    """
    match = _COMMAND.search(line)
    if match is None or not _VERB.fullmatch(match[1]):
        raise DataError(
            f"must be a command line such as {_EXAMPLE}, got {line.strip()[:80]!r}; take those of a log with "
            "grep 'MIOpenDriver conv'"
        )
    options = _options(match[2])
    for (letter, word), allowed in _PLAIN.items():
        if options.get(word, allowed[0]) not in allowed:
            raise DataError(f"-{letter} (--{word}) must be {' or '.join(allowed)}, got {options[word]!r}")
    table = _SIZES | _DEPTHS if options.get("spatial_dim") == "3" else _SIZES
    sizes = {}
    for (letter, word), (name, default) in table.items():
        value = options.get(word, str(default))
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise DataError(f"-{letter} (--{word}) must be a whole number, got {value[:40]!r}")
        sizes[name] = int(value)
    return GroupedConvProblem.from_dict(sizes)


def _options(text: str) -> dict[str, str]:
    """Return the value of each option by its word; the last one counts, as in the driver.

    Raises:
        DataError: an option is unknown or has no value.
    """
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise DataError(f"the options cannot be split into words: {e}") from e
    options = {}
    for flag, value in zip(words[::2], [*words[1::2], None], strict=False):
        word = flag.removeprefix("--") if flag.startswith("--") else _WORDS.get(flag, "")
        if word not in _WORDS.values():
            raise DataError(f"{flag[:40]!r} is not an option of MIOpenDriver conv; each must be followed by its value")
        if value is None:
            raise DataError(f"{flag} must be followed by its value")
        options[word] = value
    return options
