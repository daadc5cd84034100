"""Orchestrators that a launcher starts: they meet a trainer, whichever of the two is there first, and whoever ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_rl.orchestrator.process.start import Meeting, Met, meet

KEY = b"of the run"
COMES = """
import os, socket, sys, time
from multiprocessing.connection import Client
while True:
    try:
        pipe = Client(sys.argv[1], authkey=sys.argv[2].encode())
        break
    except OSError:
        time.sleep(0.01)
pipe.send((os.getpid(), socket.gethostname()))
print(pipe.recv()[2], flush=True)
time.sleep(60)
"""


def comes(address: str, key: bytes = KEY) -> subprocess.Popen[str]:
    """Returns a program that comes to a meeting as an orchestrator does, and prints the third thing it is given."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", COMES, address, key.decode()], stdout=subprocess.PIPE, text=True
    )


def test_one_that_waits_is_met_and_one_that_has_died_is_passed_over(tmp_path: Path) -> None:
    address = str(tmp_path / "meeting")
    Path(address).touch()  # of a trainer that was killed
    with comes(address, b"another key") as stranger, comes(address) as dead:
        meeting = Meeting(address, KEY, 30.0)
        while meeting._waiting.empty():
            time.sleep(0.01)
        dead.kill()
        dead.wait()
        with comes(address) as other:
            met, pipe = meeting.begun(None, None, 7.0)  # type: ignore[arg-type]  # the program reads neither
            assert met.pid == other.pid and other.stdout is not None and other.stdout.readline() == "7.0\n"
            met.kill()
            met.join()
            assert other.wait() == -signal.SIGKILL
            met.kill()  # nothing to kill
            pipe.close()
        assert stranger.wait() == 1, "the wrong key is refused"


def test_both_say_when_the_other_does_not_come(tmp_path: Path) -> None:
    with pytest.raises(ArcforgeError, match=r"no orchestrator has come within 0\.05 s"):
        Meeting(str(tmp_path / "meeting"), KEY, 0.05).begun(None, None, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ArcforgeError, match=r"no trainer has come within 0\.05 s"):
        meet(str(tmp_path / "nowhere"), KEY, 0.05)


def test_one_of_another_machine_is_left_to_itself() -> None:
    met = Met(os.getpid(), "another machine")
    met.kill()
    met.join()
