"""One process at a time in a folder: the other one is named, and a killed one leaves nothing to clean up."""

import os
import re
import signal
import subprocess
import sys

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_core.files.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from arcforge_core.files.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_with_the_id_of_the_first_until_that_is_killed(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ArcforgeError, match=rf"in use by process {other.pid}\b"), locked(tmp_path):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        with locked(tmp_path):
            pass
    finally:
        other.kill()
        other.communicate()


def test_a_second_process_waits_for_as_long_as_it_may(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("arcforge_core.files.lock.say", said.append)
    other = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ArcforgeError, match=rf"in use by process {other.pid}\b"), locked(tmp_path, 0.3):
            pass
        monkeypatch.setattr("arcforge_core.files.lock.say", lambda text: (said.append(text), other.kill()))
        with locked(tmp_path, 60):
            pass
        assert len(said) == 2 and all(text.endswith(f"is in use by process {other.pid}: waiting") for text in said)
    finally:
        other.kill()
        other.communicate()


def test_the_lock_ends_with_its_block_also_after_an_error(tmp_path):
    with pytest.raises(ValueError), locked(tmp_path):
        with pytest.raises(ArcforgeError, match=re.escape(f"process {os.getpid()}")), locked(tmp_path):
            pass
        raise ValueError
    with locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_reported_and_used(tmp_path, monkeypatch, capsys):
    def unsupported(file, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("arcforge_core.files.lock.fcntl.flock", unsupported)
    with locked(tmp_path):
        pass
    assert "cannot be locked (Function not implemented)" in capsys.readouterr().err
