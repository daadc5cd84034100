import errno
import os
import subprocess
import sys

import pytest

from arcforge_core.cli.errors import run_main
from arcforge_core.errors import ConfigError


def test_the_code_of_the_command_is_passed_on():
    assert run_main(lambda: None)() == 0
    assert run_main(lambda: 2)() == 2


def fail(error):
    @run_main
    def main():
        raise error

    return main


def test_a_users_error_is_one_line_and_code_2(capsys):
    assert fail(ConfigError("seed", -1, "must be\nat least 0"))() == 2
    assert capsys.readouterr().err == "error: seed=-1: must be at least 0\n"


def test_debug_shows_the_traceback_of_a_users_error(capsys, monkeypatch):
    monkeypatch.setenv("ARCFORGE_DEBUG", "1")
    assert fail(ConfigError("seed", -1, "must be at least 0"))() == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback_and_code_1(capsys):
    assert fail(ZeroDivisionError("oops"))() == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in err
    assert "fault of arcforge" in err


def test_ctrl_c_ends_without_a_traceback(capsys):
    assert fail(KeyboardInterrupt())() == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_argparse_keeps_its_own_exit():
    with pytest.raises(SystemExit) as caught:
        fail(SystemExit(2))()
    assert caught.value.code == 2


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX pipe")
def test_a_closed_pipe_ends_quietly():
    code = "import sys; from arcforge_core.cli.errors import run_main; sys.exit(run_main(lambda: print('x' * 10**6))())"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b.csv"), "error: a/b.csv cannot be written"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "error: a file cannot be written: Disk quota exceeded"),
    ],
)  # fmt: skip
def test_a_full_disk_is_the_users_in_one_line(error, said, capsys):
    def fill():
        raise error

    assert run_main(fill)() == 2
    printed = capsys.readouterr().err
    assert printed.startswith(said) and printed.count("\n") == 1


def test_ctrl_c_during_imports_is_one_word_without_a_traceback(tmp_path):
    """A script's name is ``arcforge...``; the interrupt comes after the package's first import, before ``main``."""
    script = tmp_path / "arcforge-train"
    script.write_text(
        "import os, signal\nimport arcforge_core.cli\nos.kill(os.getpid(), signal.SIGINT)\nprint('alive')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
