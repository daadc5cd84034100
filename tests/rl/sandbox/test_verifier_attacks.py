"""Attacks by an agent on the verifier in its sandbox, and on the verdict."""

import asyncio
import os
import sys
from dataclasses import replace

import pytest

from arcforge_core.contracts.sandbox import Command, SandboxError, SandboxUser
from arcforge_rl.sandbox.python import python_inside
from support.sandbox_attacks import LIMITS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's")
PYTHON, _ = python_inside()
VERIFIER = SandboxUser.VERIFIER


def agent(source, *words):
    return Command((PYTHON, "-I", "-S", "-c", source, *words), limits=LIMITS)


def verify(text, **limits):
    return Command(("/bin/sh", "-c", text), limits=replace(LIMITS, **limits), user=VERIFIER)


HUNTER = """
import ctypes, os, signal, sys, time
home = sys.argv[1]
libc = ctypes.CDLL(None)
print("begun", flush=True)
end = time.monotonic() + 3
while time.monotonic() < end:
    for name in os.listdir("/proc") if os.access("/proc", os.R_OK) else ():
        if name.isdigit() and int(name) != os.getpid():
            for action in (
                lambda: os.kill(int(name), signal.SIGKILL),
                lambda: open(f"/proc/{name}/mem", "r+b").close(),
                lambda: os.listdir(f"/proc/{name}/root/tmp") and open(f"/proc/{name}/root/tmp/verdict", "w").write("1"),
                lambda: open(f"/proc/{name}/fd/1", "w").write("forged"),
            ):
                try:
                    action()
                except OSError:
                    pass
    for path in (f"{home}/verdict", "/tmp/verdict", "verdict", "/dev/shm/verdict"):
        try:
            open(path, "w").write("forged")
        except OSError:
            pass
    time.sleep(0.005)
"""


def test_a_process_left_by_the_agent_reaches_neither_verifier_nor_verdict(run):
    async def scene():
        home = (await run.sandbox.exec(verify("echo $HOME"))).stdout.decode().strip()
        left = await run.sandbox.start(agent(HUNTER, home))
        assert await left.stdout.readline() == b"begun\n"
        done = await run.sandbox.exec(verify("echo honest > $HOME/verdict; sleep 1; cat $HOME/verdict; echo end"))
        verdict = await run.sandbox.read(f"{home}/verdict", user=VERIFIER)
        left.kill()
        await left.wait()
        return done, verdict

    done, verdict = run.wait(scene())
    assert done.ok and done.stdout == b"honest\nend\n" and verdict == b"honest\n"


def test_the_verifier_is_another_user_where_root_may_choose(run):
    async def scene():
        text = "cat /proc/self/status 2>/dev/null || id -u; id -u; touch mine 2>&1"
        first = await run.sandbox.exec(Command(("/bin/sh", "-c", "id -u; touch mine"), limits=LIMITS))
        return first.stdout, (await run.sandbox.exec(verify(text))).stdout

    ours, theirs = run.wait(scene())
    if os.getuid() == 0:
        assert ours.split()[-1] != [line for line in theirs.split() if line.isdigit()][-1]
    assert b"ermission denied" in theirs or b"ead-only" in theirs


@pytest.mark.parametrize(
    "plant",
    [
        "os.symlink(home + '/verdict', 'answer')",
        "os.mkfifo('answer')",
        "os.symlink('/etc/shadow', 'answer')",
        "os.mkdir('answer')",
    ],
)
def test_what_an_agent_plants_is_not_read_as_an_answer(run, plant):
    async def scene():
        home = (await run.sandbox.exec(verify("echo secret > $HOME/verdict; echo $HOME"))).stdout.decode().strip()
        await run.sandbox.exec(agent(f"import os, sys\nhome = sys.argv[1]\n{plant}", home))
        with pytest.raises(SandboxError):
            await run.sandbox.read("answer", user=VERIFIER)

    run.wait(asyncio.wait_for(scene(), 20))


def test_programs_of_the_verifier_come_from_the_system(run):
    """PATH names no folder of the agent's, and no shell start-up file of his is read."""

    async def scene():
        names = ("cat", ".profile", ".bashrc", "sitecustomize.py")
        forged = "#!/bin/sh\\necho forged\\n"
        planted = f"import os\nfor n in {names}: open(n, 'w').write('{forged}'); os.chmod(n, 0o755)"
        await run.sandbox.exec(agent(planted))
        done = await run.sandbox.exec(
            verify("echo honest > $HOME/x; cat $HOME/x; python3 -c 'print(1)' 2>/dev/null || echo 1")
        )
        return done.stdout

    assert run.wait(scene()) == b"honest\n1\n"
