"""The installed package as a wheel, which a registered model takes along: no index has it.

The wheel holds no compiled core, so it installs on any platform; NumPy ranks there. It is made from the installed
files, because an installed package has no sources to build from.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import tilewise
from tilewise.conf_files import conf_dir

WHEELS = "wheels"  # in the model's folder
_DATED = (1980, 1, 1, 0, 0, 0)  # equal files make equal wheels
_TAGS = "Wheel-Version: 1.0\nGenerator: tilewise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT = {".so", ".pyc"}


def write_wheel(folder: Path) -> list[str]:
    """Write the wheel below `folder`, which becomes :data:`WHEELS` in the model's folder.

    Its version has the digest of its files as the local part. That ranks above the plain version, and public indexes
    accept no such versions, so no package of an index is taken for it.

    Returns:
        The lines of ``requirements.txt`` that ask for it. pip and uv look for ``--find-links`` beside that file,
        wherever they run. The digest makes MLflow create another environment for another wheel.
    """
    name, content = _wheel()
    digest = name.partition("+m")[2]
    (folder / digest).mkdir(parents=True)
    (folder / digest / f"{name}-py3-none-any.whl").write_bytes(content)
    return [f"--find-links {WHEELS}/{digest}", f"tilewise=={tilewise.__version__}"]


@cache
def _wheel() -> tuple[str, bytes]:
    """Return name with version, and content; the installed files do not change while they are in use."""
    files = dict(_package_files())
    digest = hashlib.sha256(b"".join(name.encode() + content for name, content in files.items())).hexdigest()[:12]
    name = f"tilewise-{tilewise.__version__}+m{digest}"
    files |= _metadata(name)
    record = f"{name}.dist-info/RECORD"
    files[record] = "".join([*map(_recorded, files, files.values()), f"{record},,\n"]).encode()
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for file, data in files.items():
            entry = ZipInfo(file, _DATED)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, ZIP_DEFLATED)
    return name, buffer.getvalue()


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the name in the wheel and the content of each file."""
    package = Path(tilewise.__file__).parent
    for root, prefix in ((package, "tilewise"), (conf_dir(), "tilewise/conf")):
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix not in _LEFT_OUT:
                yield f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata(name: str) -> dict[str, bytes]:
    installed = distribution("tilewise")
    version = f"Version: {name.removeprefix('tilewise-')}"
    texts = {
        "METADATA": re.sub(
            r"^Version: .*", version, installed.read_text("METADATA") or "", count=1, flags=re.MULTILINE
        ),
        "entry_points.txt": installed.read_text("entry_points.txt") or "",
        "WHEEL": _TAGS,
    }
    return {f"{name}.dist-info/{file}": text.encode() for file, text in texts.items()}


def _recorded(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"
