"""A reader sees the old content or the new one; a failure leaves the old one and nothing beside it. Locks exclude."""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewise import files
from tilewise.files import create_bytes, locked, replace_folder, write_bytes, write_text


def test_text_and_bytes_come_back(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "folder" / "a.txt", "größe\r\n")
    write_bytes(tmp_path / "b.bin", b"\0\1")
    assert (tmp_path / "new" / "folder" / "a.txt").read_bytes() == "größe\r\n".encode()
    assert (tmp_path / "b.bin").read_bytes() == b"\0\1"


def test_a_file_is_readable_as_any_other(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "b").stat().st_mode)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    contents = {b"a" * 200_000, b"b" * 100_000}
    write_bytes(path, b"b" * 100_000)
    seen = set()

    def read() -> None:
        for _ in range(200):
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        for content in contents:
            write_bytes(path, content)
    reader.join()
    assert seen <= contents


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "target"
    with replace_folder(folder) as fresh:
        (fresh / "old").write_text("1")
    with replace_folder(folder) as fresh:
        (fresh / "new").write_text("2")
        assert [p.name for p in folder.iterdir()] == ["old"]
    assert [p.name for p in folder.iterdir()] == ["new"]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_failed_replacement_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    with replace_folder(folder) as fresh:
        (fresh / "old").write_text("1")

    def half_way() -> None:
        with replace_folder(folder) as fresh:
            (fresh / "new").write_text("2")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        half_way()
    assert [p.name for p in folder.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_disk_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def full(path: Path, mode: int = 0o777, **options: bool) -> None:
        if path.name == "new":
            raise OSError(errno.ENOSPC, "disk full")
        mkdir(path, mode, **options)

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="disk full"), replace_folder(tmp_path / "target"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [write_bytes, create_bytes])
def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    """A limit on the size of files stands for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "a", b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_replaced_too(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("a file")
    with replace_folder(tmp_path / "target") as fresh:
        (fresh / "x").touch()
    assert (tmp_path / "target" / "x").exists()


def test_of_two_who_create_a_file_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a"
    create_bytes(path, b"first")
    with pytest.raises(FileExistsError):
        create_bytes(path, b"second")
    assert path.read_bytes() == b"first"
    assert [p.name for p in path.parent.iterdir()] == ["a"]


def test_a_lock_keeps_others_out_while_the_block_lasts(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / ".lock"
    with locked(lock), pytest.raises(BlockingIOError), locked(lock, wait=False):
        pass
    with locked(lock, wait=False):
        pass


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with locked(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock"):
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_folder_is_replaced_in_one_step_or_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves the old folder or the new one. Not every system can exchange folders."""
    for can in (True, False):
        if not can:
            monkeypatch.setattr(files, "_exchange", lambda one, other: False)
        for content in ("1", "2"):
            with replace_folder(tmp_path / "target") as fresh:
                (fresh / content).touch()
        assert [p.name for p in (tmp_path / "target").iterdir()] == ["2"]
        assert list(tmp_path.iterdir()) == [tmp_path / "target"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders")
def test_folders_are_exchanged_at_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not files._exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("this file system cannot exchange folders")
    assert (tmp_path / "one" / "other").exists()
    assert (tmp_path / "other" / "one").exists()
    with pytest.raises(FileNotFoundError, match="none"):
        files._exchange(tmp_path / "one", tmp_path / "none")
