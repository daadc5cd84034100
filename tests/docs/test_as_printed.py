"""The commands of README and docs run as printed: nothing shortened, in order, in a clone with a base model.

A command that lasts longer than `LONGEST` must say so on its page, in minutes or hours. Then it may stop here after
`BOUND` seconds by Ctrl-C, as readers stop it, and what it has saved is what the next command starts from.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from arcforge_core.files.rundir import point_name

ROOT = Path(__file__).parents[2]
BOUND, LONGEST = 60, 420
DURATION = re.compile(r"\b(?:seconds?|minutes?|hours?|minute and a half)\b", re.IGNORECASE)
SERVES = re.compile(r"arcforge(?:-serve| serve| demo)(?! rl)\b(?!.* --help)")
NOT_HERE = {
    "source .venv/bin/activate": "it is active",
    "make test": "what runs this",
    "make venv": "it is there",
}
STOPPED = (130, -signal.SIGINT)
"""How a command ends by Ctrl-C; `make` ends by the signal itself."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone with texts, a small base model for that of `make run`, and the demo's for that of `pipeline=sft_mini`."""
    folder = tmp_path_factory.mktemp("printed") / "arcforge"
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "my_texts").mkdir()
    for number, file in enumerate(sorted(ROOT.glob("docs/*.md"))):
        (folder / "my_texts" / f"{number}.txt").write_text(file.read_text(encoding="utf-8"))
    ran = run("arcforge-train experiment=smoke name=mini", folder, bound=LONGEST)
    assert ran.returncode == 0, ran.stdout[-3000:]
    point_name(folder / "outputs", "sft_mini", ROOT / "packages/core/src/arcforge_core/demo_model")
    return folder


def pytest_generate_tests(metafunc):
    """One test per page with commands; the tutorial's have a test of their own."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    metafunc.parametrize("page", [p for p in pages if not p.stem.startswith("tutorial")], ids=lambda page: page.stem)


@pytest.mark.timeout(7200)
@pytest.mark.nightly(reason="whole trainings, stopped after a minute where their page says how long they take")
def test_the_commands_of_a_page_run_as_printed(page, pages, clone):
    for block in pages[page]:
        if block.language == "bash" and not block.needs:
            run_block(block, clone, says_how_long(page, block))


def says_how_long(page, block):
    """Whether the block, or the text around it, says how long commands take."""
    lines = page.read_text(encoding="utf-8").splitlines()
    end = block.line + block.text.count("\n") + 1
    return bool(DURATION.search("\n".join(lines[max(0, block.line - 8) : end + 8])))


def run_block(block, folder, long):
    """Runs the lines of a block one after another; servers run until its end."""
    servers = []
    try:
        for line in block.text.replace("\\\n", " ").splitlines():
            command = line.partition(" #")[0].strip()
            if not command or command.startswith("#") or command in NOT_HERE:
                continue
            print(f"{block.place}: {command}", flush=True)
            if SERVES.search(command):
                servers.append(start_server(command, folder))
                continue
            ran = run(command, folder, bound=BOUND if long else LONGEST)
            stopped = ran.returncode in STOPPED and long
            assert ran.returncode == 0 or stopped, f"{block.place}: {command}: {ran.returncode}\n{ran.stdout[-3000:]}"
            for server in servers:
                assert server.poll() is None, f"{block.place}: the server has ended"
    finally:
        for server in servers:
            end(server)


def start(command, folder):
    """Starts a command in a shell; `make` takes the environment as it is."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "ARCFORGE_CACHE": str(folder.parent / "cache"), "OMP_NUM_THREADS": "2"}
    variables.pop("PYTHONPATH", None)
    command = re.sub(r"\bmake\b", "make -o venv", command)
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=hear_interrupts,
    )  # fmt: skip


def hear_interrupts():
    """A shell that starts its commands in the background has them ignore Ctrl-C, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(command, folder, bound):
    """Runs a command, for `bound` seconds and until it has answered Ctrl-C; returns it with what it has printed."""
    process = start(command, folder)
    try:
        said, _ = process.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, said)


def start_server(command, folder):
    """Starts a server and waits until it answers at the page's address."""
    process = start(f"exec {command}", folder)
    for _ in range(600):
        assert process.poll() is None, f"{command}\n{process.stdout.read()[-3000:]}"
        try:
            with urllib.request.urlopen("http://localhost:8000/health", timeout=2):
                return process
        except OSError:
            time.sleep(0.3)
    end(process)
    raise AssertionError(f"{command}: no answer at port 8000")


def end(process):
    """Ends a server as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
