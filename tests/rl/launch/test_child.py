"""A process of a run: it ends with its parent, has its cores, and says itself how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arcforge_rl.launch.child import Child, ProcessPart, last_words


def part(log: Path, *command: str, cores: tuple[int, ...] | None = None, given: bytes = b"") -> ProcessPart:
    return ProcessPart("engine", command, given, dict(os.environ), cores, log, str(log.parent))


def python(log: Path, program: str, **given: object) -> ProcessPart:
    return part(log, sys.executable, "-S", "-c", program, **given)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait(child: Child) -> int:
    last = time.monotonic() + 60
    while (code := child.poll()) is None:
        assert time.monotonic() < last
        time.sleep(0.01)
    return code


PARENT = """
import os, sys, time
from pathlib import Path
from arcforge_rl.launch.child import Child, ProcessPart
child = Child(ProcessPart("engine", ["sleep", "60"], b"", dict(os.environ), None, Path(sys.argv[1]), "/"))
print(child.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
        last = time.monotonic() + 30
        while alive(pid):
            assert time.monotonic() < last, "it has survived its parent"
            time.sleep(0.01)


def test_exit_code_cores_input_and_output_are_those_of_the_command(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    program = "import os, sys; print(os.sched_getaffinity(0), sys.stdin.read()); sys.exit(3)"
    child = Child(python(tmp_path / "log", program, cores=(core,), given=b"an errand"))
    assert wait(child) == 3
    child.release()
    assert (tmp_path / "log").read_text() == f"{{{core}}} an errand\n"
    killed = Child(part(tmp_path / "log", "sleep", "60"))
    killed.release()
    assert killed.poll() == -signal.SIGKILL
    assert (tmp_path / "log").read_text().endswith("an errand\n"), "a later life's output is appended"


def test_release_ends_what_the_process_has_left(tmp_path: Path) -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    child = Child(python(tmp_path / "log", program))
    assert wait(child) == 0
    left = int((tmp_path / "log").read_text())
    assert alive(left)
    child.release()
    last = time.monotonic() + 30
    while alive(left):
        assert time.monotonic() < last
        time.sleep(0.01)


def test_one_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    child = Child(part(tmp_path / "log", "no_such_program", "x", given=b"lost"))
    assert wait(child) == 127
    assert last_words(tmp_path / "log") == "no_such_program cannot be started: No such file or directory"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", ""),
        ("loading\nerror: port=80: cannot be listened on\nbye\n", "port=80: cannot be listened on"),
        ("one\n\x1b[31mtwo\x1b[0m\n\n", "two"),
        ("KeyError: 'x'\nerror: this is a fault of arcforge, please report it\n", "KeyError: 'x'"),
        ("x" * 9000 + "\nlast", "last"),
    ],
)
def test_last_words(tmp_path: Path, output: str, words: str) -> None:
    (tmp_path / "log").write_text(output)
    assert last_words(tmp_path / "log") == words


def test_there_are_no_last_words_without_a_log(tmp_path: Path) -> None:
    assert last_words(tmp_path / "log") == ""
