"""An appender writes whole lines in the background, in a file of bounded size, and counts those that it drops."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from alone import run_alone
from tilewise.dispatch.background import Appender, Ticker


class TestAppender:
    def test_lines_of_threads_stay_whole(self, tmp_path: Path) -> None:
        appender = Appender(tmp_path / "lines", 1 << 20)

        def write(t: str) -> None:
            for i in range(100):
                appender.put(partial(lambda i: f"{t}:{i}" * 50, i))

        threads = [threading.Thread(target=write, args=(t,)) for t in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        appender.close()
        lines = (tmp_path / "lines").read_text().splitlines()
        assert sorted(lines) == sorted(f"{t}:{i}" * 50 for t in "abcd" for i in range(100))
        assert appender.lost == 0

    def test_a_full_file_is_rotated_and_one_older_file_kept(self, tmp_path: Path) -> None:
        appender = Appender(tmp_path / "lines", 100)
        for i in range(20):
            appender.put(lambda i=i: f"{i:030}")  # type: ignore[misc]
            appender.flush()
        appender.close()
        older, newer = ((tmp_path / name).read_text().split() for name in ("lines.1", "lines"))
        assert [int(line) for line in older + newer] == list(range(20 - len(older) - len(newer), 20))
        assert 0 < len(newer) <= len(older) == 3

    def test_waiting_lines_are_written_at_exit(self, tmp_path: Path) -> None:
        source = "from tilewise.dispatch.background import Appender as A; a = A({!r}, 1 << 20); a.put(lambda: 'x')"
        subprocess.run([sys.executable, "-c", source.format(str(tmp_path / "lines"))], check=True)
        assert (tmp_path / "lines").read_text() == "x\n"

    def test_dropped_lines_are_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ticker, "start", lambda *_, **__: None)
        appender = Appender(tmp_path / "lines", 1000, max_waiting=3)
        for i in range(5):
            appender.put(lambda i=i: str(1 / (i - 1)))  # type: ignore[misc]
        appender.close()
        assert appender.lost == 3  # two did not fit, one raised
        assert (tmp_path / "lines").read_text().split() == ["-1.0", "1.0"]

    def test_lines_for_an_unwritable_file_are_counted(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        appender = Appender(tmp_path / "file" / "lines", 1000)
        appender.put(lambda: "x")
        appender.close()
        assert appender.lost == 1

    def test_lines_queued_during_a_flush_wait_for_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise threads that decide faster than lines are made keep one flush going, and nothing is written."""
        monkeypatch.setattr(Ticker, "start", lambda *_, **__: None)
        appender, made = Appender(tmp_path / "lines", 1 << 20), 0

        def line() -> str:
            nonlocal made
            made += 1
            if made < 10_000:
                appender.put(line)
            return "x"

        appender.put(line)
        appender.flush()
        assert made == 1
        assert (tmp_path / "lines").read_text() == "x\n"

    def test_many_lines_are_written_in_small_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Ticker, "start", lambda *_, **__: None)
        appender, sizes = Appender(tmp_path / "lines", 1 << 24), []

        def line() -> str:
            sizes.append((tmp_path / "lines").stat().st_size if (tmp_path / "lines").exists() else 0)
            return "x" * 1000

        for _ in range(4000):
            appender.put(line)
        appender.close()
        assert max(b - a for a, b in itertools.pairwise(sizes)) <= 70_000
        assert sizes[-1] > 3_900_000
        assert len((tmp_path / "lines").read_text().splitlines()) == 4000
        assert appender.lost == 0

    def test_a_full_disk_leaves_no_half_line(self, tmp_path: Path) -> None:
        """A limit on the size of files stands for the disk: the write that reaches it is cut off."""
        run_alone(f"""
            import resource
            from pathlib import Path
            from tilewise.dispatch.background import Appender, Ticker

            Ticker.start = lambda *_, **__: None
            path = Path({str(tmp_path / "lines")!r})
            appender = Appender(path, 1 << 20)
            def put(count):
                for _ in range(count):
                    appender.put(lambda: "x" * 299)
                appender.flush()
            put(2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            put(3)
            assert appender.lost == 3, appender.lost
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            put(2)
            lines = path.read_text().splitlines()
            assert lines == ["x" * 299] * 4, [len(line) for line in lines]
        """)

    def test_a_half_line_of_a_killed_process_costs_no_other(self, tmp_path: Path) -> None:
        (tmp_path / "lines").write_text("whole\nha")
        appender = Appender(tmp_path / "lines", 1 << 20)
        appender.put(lambda: "next")
        appender.close()
        assert (tmp_path / "lines").read_text() == "whole\nha\nnext\n"
