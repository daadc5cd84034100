import io
import re
import threading
import time

import pytest

from arcforge_core.console import progress
from support.waiting import wait_until


def test_items_pass_through_and_a_log_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track(range(1000), "counting")) == list(range(1000))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("counting: 1,000 in ")


def test_slow_work_prints_a_line_per_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.02)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.03)
    said = [""]

    def lines_of(done: int) -> int:
        said[0] += capsys.readouterr().err
        return said[0].count(f"reading: {done} of 3 (")

    for done, _ in enumerate(progress.track(iter("xyz"), "reading", total=3)):  # an item that takes long is no silence
        wait_until(lambda done=done: lines_of(done) >= 2)
    *lines, last = (said[0] + capsys.readouterr().err).splitlines()
    assert lines[0].startswith("reading: 0 of 3 (")
    assert lines[-1].startswith("reading: 2 of 3 (") and lines[-1].endswith(" s left)")
    assert last.startswith("reading: 3 in ")


def test_work_that_is_left_half_way_is_silent_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.02)
    left = progress.track(iter("xyz"), "reading")
    assert next(left) == "x"
    left.close()
    capsys.readouterr()  # on a busy machine it has been silent for too long before
    time.sleep(0.06)
    assert capsys.readouterr().err == "" and not any("speak" in thread.name for thread in threading.enumerate())


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert list(progress.track([1, 2, 3], "tokenising")) == [1, 2, 3]
    assert "tokenising" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_an_empty_iterable_says_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track([], "nothing")) == []
    assert "nothing: 0 in" in capsys.readouterr().err


def test_a_phase_without_items_is_named_once_it_has_taken_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.02)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.02)
    said = [""]

    def lines() -> list[str]:
        said[0] += capsys.readouterr().err
        return said[0].splitlines()

    with progress.working("drawing"):
        wait_until(lambda: len(lines()) >= 2)
    assert all(re.fullmatch(r"drawing \(\d+ s\)", line) for line in lines())
    with progress.working("drawing"):
        pass
    with pytest.raises(KeyboardInterrupt), progress.working("drawing"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
    assert not any("speak" in thread.name for thread in threading.enumerate())
