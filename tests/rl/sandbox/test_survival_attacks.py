"""Attacks that would outlive a command, tamper with a grader, or leak from one sandbox into another."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from arcforge_core.contracts.sandbox import Command, CommandStatus, SandboxError
from arcforge_rl.sandbox.python import python_inside
from support.sandbox_attacks import LIMITS, processes_like

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, _ = python_inside()

DAEMON = """
import os, sys, time
for _ in range(2):
    if os.fork():
        while _ == 0 and not os.path.exists("reward.json"):
            time.sleep(0.01)
        os._exit(0)
    os.setsid()
for fd in range(3):
    os.close(fd)
while True:
    with open("reward.json", "w") as file:
        file.write(str(time.time()))
    time.sleep(0.001)
"""


def test_a_daemon_does_not_outlive_its_command(run):
    marker = f"marker-{os.getpid()}-{time.time_ns()}"
    command = Command((PYTHON, "-I", "-S", "-c", DAEMON, marker), limits=LIMITS)
    assert run.wait(run.sandbox.exec(command)).ok
    assert processes_like(marker) == []
    run.wait(run.sandbox.read("reward.json"))  # it was there, perhaps cut short
    run.wait(run.sandbox.write("reward.json", b"verified"))
    time.sleep(0.05)
    assert run.wait(run.sandbox.read("reward.json")) == b"verified"


def test_the_daemon_outlives_its_command_outside(tmp_path):
    marker = f"marker-{os.getpid()}-{time.time_ns()}"
    subprocess.run([PYTHON, "-I", "-S", "-c", DAEMON, marker], cwd=tmp_path, check=True)
    alive = processes_like(marker)
    assert alive
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def test_nothing_is_alive_after_stop(backend, loop):
    async def scene():
        sandbox = await backend.open(limits=LIMITS)
        marker = f"marker-{os.getpid()}-{time.time_ns()}"
        task = asyncio.create_task(
            sandbox.exec(Command((PYTHON, "-I", "-S", "-c", "import time; time.sleep(60)", marker)))
        )
        while not processes_like(marker):
            await asyncio.sleep(0.01)
        await sandbox.stop()
        with pytest.raises(SandboxError, match="stopped"):
            await task
        return processes_like(marker)

    assert loop.run_until_complete(asyncio.wait_for(scene(), 30)) == []


def test_no_job_can_be_left_with_a_clock_daemon(run):
    done = run.shell(
        "for d in /var/spool/cron/crontabs /var/spool/cron/atjobs /etc/cron.d; do echo x > $d/job && echo BROKEN; done"
    )
    assert b"BROKEN" not in done.stdout


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        ("ln -s /etc/passwd reward.json", "is a link"),
        ("ln -s /dev/zero reward.json", "is a link"),
        ("mkfifo reward.json", "not a regular file"),
        ("mkdir reward.json", "not a regular file"),
        ("head -c 3000000 /dev/zero > reward.json", "longer than"),
        ("true", "not a regular file"),
    ],
)
def test_a_planted_reward_file(run, plant, reason):
    assert run.shell(plant).ok
    with pytest.raises(SandboxError, match=reason):  # it waits for no writer of a pipe, and reads no endless device
        run.wait(run.sandbox.read("reward.json"))


@pytest.mark.parametrize("plant", ["mkfifo answer", "mkdir answer", "ln -s /dev/zero answer"])
def test_a_planted_target_of_a_write(run, plant):
    assert run.shell(plant).ok
    with pytest.raises(SandboxError, match="not a regular file"):  # nobody reads the pipe: it would wait
        run.wait(run.sandbox.write("answer", b"x" * 200_000))


def test_a_file_that_only_looks_like_an_option(run):
    run.wait(run.sandbox.write("./-rf", b"data"))
    assert run.wait(run.sandbox.read("./-rf")) == b"data"


def test_variables_do_not_reach_the_next_command(run):
    env = {
        "LD_PRELOAD": "/workspace/evil.so",
        "BASH_ENV": "/workspace/evil",
        "PYTHONPATH": "/workspace",
        "PATH": "/workspace",
    }
    run.wait(run.sandbox.exec(Command(("/bin/sh", "-c", "true"), env=env, limits=LIMITS)))
    done = run.shell("env")
    assert not any(name in done.stdout.decode() for name in ("LD_PRELOAD", "BASH_ENV", "PYTHONPATH", "/workspace/evil"))
    assert b"PATH=/usr/local/bin:/usr/bin:/bin\n" in done.stdout


def test_a_fresh_sandbox_knows_nothing_of_another(backend, loop):
    async def scene():
        first, second = [await backend.open(limits=LIMITS) for _ in range(2)]
        plant = (
            "echo planted | tee reward.json conftest.py sitecustomize.py $HOME/.bashrc $TMPDIR/left > /dev/null; pwd"
        )
        place = (await first.exec(Command(("/bin/sh", "-c", plant)))).stdout.decode().strip()
        look = "ls -A . $HOME $TMPDIR; cat PLACE/reward.json /dev/shm/*".replace("PLACE", place)
        done = await second.exec(Command(("/bin/sh", "-c", look)))
        after = await backend.open(limits=LIMITS)
        again = await after.exec(Command(("/bin/sh", "-c", look)))
        return done.stdout + again.stdout

    assert b"planted" not in (found := loop.run_until_complete(scene()))
    assert b"reward.json" not in found


def test_no_history_of_a_repository_is_in_sight(run):
    done = run.shell(
        "find / -xdev \\( -name .git -o -name packed-refs -o -path '*/pip/cache' \\) -print 2>/dev/null; true",
        wall_seconds=20,
    )
    assert done.ok and done.stdout == b""


def test_a_script_cannot_be_smuggled_in_by_an_argument(run):
    everything = "".join(map(chr, range(1, 0x250)))
    for text in (
        everything,
        everything[::-1],
        "\1" * 14_000,
        "; echo BROKEN",
        "$(echo BROKEN)",
        "`echo BROKEN`",
        "'; echo BROKEN; '",
        "\necho BROKEN\n",
        "\\",
    ):
        done = run.wait(run.sandbox.exec(Command(("/usr/bin/printf", "%s", text), env={"X": text})))
        assert done.stdout.decode() == text


def test_the_input_is_never_read_as_the_shells_script(run):
    lines = b"echo BROKEN\n" * 2000
    for padding in range(0, 20_000, 2_777):  # wherever the shell's buffer ends
        command = Command(("/bin/cat",), lines, {"PADDING": "x" * padding}, limits=LIMITS)
        assert run.wait(run.sandbox.exec(command)).stdout == lines


@pytest.mark.parametrize("name", ["PIPE", "XFSZ"])
def test_signals_that_python_ignores_reach_commands(run, name):
    done = run.shell(f"kill -{name} $$; echo ignored")
    assert (done.outcome, done.stdout) == (CommandStatus.SIGNAL, b""), done
