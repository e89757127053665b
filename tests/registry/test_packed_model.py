"""A packed model holds exactly its files, and nothing else is unpacked."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.registry._packed_model import pack, unpack

FILES = {"pool.json": b"{}", "model_tflops.lgbm.gz": bytes(range(256)) * 9, "empty.json": b""}


def zipped(*entries: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip file with these entries."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression) as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return written.getvalue()


@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z_.]{0,9}\Z"), st.binary(max_size=99), min_size=1, max_size=12))
def test_files_come_back_as_they_were(files: dict[str, bytes]) -> None:
    assert unpack(pack(files)) == files
    assert pack(dict(reversed(files.items()))) == pack(files)


@given(st.data())
def test_what_is_damaged_is_refused_or_has_the_same_content(data: st.DataObject) -> None:
    """A byte of the headers may say nothing that is read; none of the content changes unnoticed."""
    packed = bytearray(pack(FILES))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack(bytes(packed))
    except ValueError:
        return
    assert sorted(found.values()) == sorted(FILES.values())


@pytest.mark.parametrize("length", [0, 1, 100, 2000, -1, -22])
def test_what_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="no sound zip file"):
        unpack(pack(FILES)[:length])


@pytest.mark.parametrize("name", ["../../a", "/a", "..", ".a", "a/b", "a\n", "a/"])
def test_a_name_that_tilewise_does_not_give(name: str) -> None:
    with pytest.raises(ValueError, match="with names"):
        unpack(zipped(("pool.json", b"{}"), (name, b"x")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_too_many_files_none_or_the_same_twice() -> None:
    for entries in ([(f"a{i}", b"") for i in range(100)], [], [("a", b"1"), ("a", b"2")]):
        with pytest.raises(ValueError, match="must have up to 64 files"):
            unpack(zipped(*entries))


def test_a_file_that_would_grow_when_it_is_unpacked() -> None:
    with pytest.raises(ValueError, match="must not be compressed"):
        unpack(zipped(("a", bytes(1 << 20)), compression=zipfile.ZIP_DEFLATED))


def test_entries_that_share_their_bytes() -> None:
    """The directory names one file's bytes twice."""
    packed = bytearray(zipped(("a", bytes(1000)), ("b", bytes(1000))))
    second = packed.rindex(b"PK\x01\x02")
    packed[second + 42 : second + 46] = bytes(4)  # the place of its bytes: those of the first
    packed[packed.index(b"b", second)] = ord("c")
    with pytest.raises(ValueError, match=r"no sound zip file|overlap"):
        unpack(bytes(packed))
