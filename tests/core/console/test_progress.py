import io
import threading
import time

import pytest

from arcforge_core.console import progress


def test_items_pass_through_and_a_log_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track(range(1000), "counting")) == list(range(1000))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("counting: 1,000 in ")


def test_slow_work_prints_a_line_per_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(float(second) for second in range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    list(progress.track(iter("x" * 20), "reading", total=20))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["reading: 2 of 20 (2 s, about 18 s left)", "reading: 7 of 20 (7 s, about 13 s left)"]
    assert len(lines) == 5


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
    with progress.working("drawing"):
        time.sleep(0.15)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2 and set(lines) == {"drawing (0 s)"}
    with progress.working("drawing"):
        pass
    with pytest.raises(KeyboardInterrupt), progress.working("drawing"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
    assert not any("speak" in thread.name for thread in threading.enumerate())
