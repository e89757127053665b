"""The installed package as a wheel, which a registered model takes along: no index has it.

The wheel holds no compiled core, so it installs on any platform; NumPy ranks there. It is made from the installed
files, because an installed package has no sources to build from.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import tilewise
from tilewise.arch import conf_dir

_NAME = f"tilewise-{tilewise.__version__}"
_DATED = (1980, 1, 1, 0, 0, 0)  # equal files make equal wheels
_TAGS = "Wheel-Version: 1.0\nGenerator: tilewise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT = {".so", ".pyc"}


def write_wheel(folder: Path) -> str:
    """Write the wheel below `folder`.

    Returns:
        Its path relative to `folder`, with a digest: MLflow shares an environment between equal requirements.
    """
    files = dict(_package_files()) | dict(_metadata())
    digest = hashlib.sha256(b"".join(n.encode() + c for n, c in sorted(files.items()))).hexdigest()[:12]
    path = folder / digest / f"{_NAME}-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    record = f"{_NAME}.dist-info/RECORD"
    files[record] = "".join([*map(_recorded, files, files.values()), f"{record},,\n"]).encode()
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            entry = ZipInfo(name, _DATED)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, ZIP_DEFLATED)
    return path.relative_to(folder).as_posix()


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the name in the wheel and the content of each file."""
    package = Path(tilewise.__file__).parent
    for root, prefix in ((package, "tilewise"), (conf_dir(), "tilewise/conf")):
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix not in _LEFT_OUT:
                yield f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata() -> Iterator[tuple[str, bytes]]:
    installed = distribution("tilewise")
    for name in ("METADATA", "entry_points.txt"):
        yield f"{_NAME}.dist-info/{name}", (installed.read_text(name) or "").encode()
    yield f"{_NAME}.dist-info/WHEEL", _TAGS.encode()


def _recorded(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"
