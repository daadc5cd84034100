import errno
import os
import signal
import subprocess
import sys

import pytest

from arcforge_core.cli.errors import run_main
from arcforge_core.errors import ConfigError, UnavailableError


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


def test_a_service_that_does_not_answer_is_one_line_and_code_75(capsys):
    assert fail(UnavailableError("the server\nis down"))() == 75
    assert capsys.readouterr().err == "error: the server is down\n"


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


DURING_IMPORTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
import arcforge_core.cli.main
print('alive')
"""


@pytest.mark.parametrize(
    ("script", "module", "answer"),
    [
        ("arcforge-train", "arcforge_core.plugins.loader", (130, "", "interrupted\n")),  # the first of the long ones
        ("arcforge", "arcforge_core.cli.errors", (130, "", "interrupted\n")),
        ("arcforge-of-mine.py", "arcforge_core.cli.errors", (-signal.SIGINT, "", "KeyboardInterrupt\n")),
    ],
)
def test_ctrl_c_during_imports_is_one_word_without_a_traceback(script, module, answer, tmp_path):
    """A console script is ``arcforge...`` without an ending; scripts of users keep Python's own answer."""
    file = tmp_path / script
    file.write_text(DURING_IMPORTS.format(module=module))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "".join(done.stderr.splitlines(True)[-1:])) == answer
    assert done.stderr.startswith("Traceback") == script.endswith(".py")
