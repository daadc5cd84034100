"""The commands of README and docs run as printed: nothing shortened, in order, in a clone with a base model.

A command beside which its page states a duration may stop here by Ctrl-C, as readers stop it: `BOUND` processor seconds
after its first training step. Whatever it has saved is what the next command starts from. ``ARCFORGE_PRINTED=20`` sets
other seconds; ``ARCFORGE_PRINTED=whole`` lets every command end by itself, which takes most of a day on two cores.
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arcforge_core.files.find import NAMED
from arcforge_core.files.rundir import point_name

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "packages/core/src/arcforge_core/demo_model"
WHOLE = (LIMIT := os.environ.get("ARCFORGE_PRINTED", "60")) == "whole"
BOUND = math.inf if WHOLE else int(LIMIT)
"""Processor seconds of a long command after its first step, or since its start if it takes none."""
LONGEST, LONGEST_WHOLE = 3600, 6 * 3600
"""Seconds after which a command has failed: generous, because other programs may use the machine."""
ANSWER = 600
"""Seconds for the answer to Ctrl-C, with checkpoint and report, and for a server's first answer."""
DURATION = re.compile(r"\b(?:seconds?|minutes?|hours?|minute and a half)\b", re.IGNORECASE)
SERVES = re.compile(r"arcforge(?:-serve| serve| demo)(?! rl)\b(?!.* --help)")
BASE = "trainer.max_steps=2 trainer.minutes=null trainer.max_tokens=null trainer.samples=0 trainer.python_functions=0"
"""Makes a model of the shape of `make run`, which `stage=sft init=mini` asks for, without its ten minutes."""
NOT_HERE = {
    "source .venv/bin/activate": "it is active",
    "make test": "what runs this",
    "make venv": "it is there",
}
STOPPED = (130, -signal.SIGINT)
"""How a command ends by Ctrl-C; `make` ends by the signal itself."""
TRAINS = re.compile(r"arcforge-(?:train|rl|pipeline)|make run|demo rl")
NAME, INIT = re.compile(r"\bname=([\w-]+)"), re.compile(r"\binit=([\w-]+)")
LOOKS_ONLY = re.compile(r"--help|--cfg|check=true|-sc ")
BEGAN = re.compile(r"^starting from (\S+): \d+ tensors|^run (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone with texts, a small base model for that of `make run`, and the demo's for those of the pipelines."""
    folder = tmp_path_factory.mktemp("printed") / "arcforge"
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "my_texts").mkdir()
    for number, file in enumerate(sorted(ROOT.glob("docs/*.md"))):
        (folder / "my_texts" / f"{number}.txt").write_text(file.read_text(encoding="utf-8"))
    for number, file in enumerate(sorted(ROOT.glob("packages/core/src/**/*.py"))):
        (folder / "my_texts" / f"{number}.py").write_text(file.read_text(encoding="utf-8"))
    code, said = run(f"arcforge-train experiment=mini {BASE}", folder, stops=False)
    assert code == 0, said[-3000:]
    for name in ("sft_mini", "sft_expressions"):
        point_name(folder / "outputs", name, DEMO)
    return folder


def pytest_generate_tests(metafunc):
    """One test per page with commands; the tutorial's have a test of their own."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *sorted((ROOT / "docs").glob("*.md"))]
    pages = [p for p in pages if "\n```bash" in p.read_text(encoding="utf-8") and not p.stem.startswith("tutorial")]
    metafunc.parametrize("page", pages, ids=name_of)


def name_of(page):
    """Returns the page's name; that of a package's README is the package's."""
    return page.parent.name if page.parent.parent.name == "packages" else page.stem


@pytest.mark.timeout(24 * 3600)  # every command has a limit of its own
@pytest.mark.nightly(reason="whole trainings, stopped after a minute where their page says how long they take")
def test_the_commands_of_a_page_run_as_printed(page, pages, clone):
    point_name(clone / "outputs", "mini", DEMO)  # whose turns end, so that evaluations of chat end soon
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
    stops = long and not WHOLE
    with ExitStack() as servers:
        for line in block.text.replace("\\\n", " ").splitlines():
            command = line.partition(" #")[0].strip()
            if not command or command.startswith("#") or command in NOT_HERE:
                continue
            print(f"{block.place}: {command}", flush=True)
            if SERVES.search(command):
                servers.enter_context(server(command, folder))
                continue
            given, init = NAME.search(command), INIT.search(command)
            wanted, earlier = init and run_of(init[1], folder), given and run_of(given[1], folder)
            began = time.monotonic()
            code, said = run(command, folder, stops)
            print(f"{block.place}: exit code {code} after {time.monotonic() - began:.0f} s", flush=True)
            assert code == 0 or (stops and code in STOPPED), f"{block.place}: {command}: {code}\n{said[-3000:]}"
            if LOOKS_ONLY.search(command):
                continue
            if given and "resume=" not in command:
                assert run_of(given[1], folder) != earlier, f"{block.place}: {command}: made no run of its name"
            if wanted and TRAINS.search(command):
                assert began_with(said, folder).is_relative_to(wanted), f"{block.place}: {command}: {said[:3000]}"


def run_of(name, folder):
    """Returns the folder that a name means at present, None if there is none."""
    links = [folder / place / name for place in NAMED]
    newest = max((link for link in links if link.exists()), key=lambda link: link.lstat().st_mtime, default=None)
    return newest and newest.resolve()


def began_with(said, folder):
    """Returns the checkpoint that a training started from, as it printed it or wrote it into its configuration."""
    for printed, made in BEGAN.findall(said):
        if printed:
            return (folder / printed).resolve()
        if (config := OmegaConf.load(folder / made / "config.yaml")).get("algorithm"):
            return Path(config.init)
    raise AssertionError(f"it says no checkpoint that it starts from\n{said[:3000]}")


def start(command, folder, log):
    """Starts a command in a shell; `make` takes the environment as it is."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "ARCFORGE_CACHE": str(folder.parent / "cache")}
    variables.pop("PYTHONPATH", None)
    command = re.sub(r"\bmake\b", "make -o venv", command)
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
        stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=hear_interrupts,
    )  # fmt: skip


def hear_interrupts():
    """A shell that starts its commands in the background has them ignore Ctrl-C, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(command, folder, stops):
    """Runs a command to its end, or until it has answered Ctrl-C; returns its exit code and what it has printed."""
    log = folder.parent / "said.txt"
    with open(log, "w") as file:
        process, began, free = start(command, folder, file), time.time(), 0.0
        try:
            while process.poll() is None:
                time.sleep(0.5)
                seconds = time.time() - began
                assert seconds < (LONGEST_WHOLE if WHOLE else LONGEST), f"{command}: {seconds:.0f} s\n{tail(log)}"
                if stops and TRAINS.search(command) and not has_stepped(folder, began):
                    free = processor_seconds(process.pid)
                elif stops and processor_seconds(process.pid) - free > BOUND:
                    print(f"{command}: stopped", flush=True)
                    end(process)
        finally:
            end(process)
    return process.returncode, log.read_text()


def tail(log):
    """Returns the end of what a command has printed."""
    return log.read_text()[-3000:]


def has_stepped(folder, began):
    """Whether a training has written a row of its metrics since."""
    tables = (folder / "outputs").rglob("metrics.csv")
    return any(table.stat().st_mtime > began and table.read_text().count("\n") > 1 for table in tables)


def processor_seconds(group):
    """Returns the processor seconds of the processes of a group, and of those of their children that have ended."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(command, folder):
    """Starts a server, waits until it answers at the page's address, and ends it afterwards."""
    log = folder.parent / "served.txt"
    with open(log, "w") as file:
        process = start(f"exec env {command}", folder, file)
        try:
            wait_for(process, log)
            yield
            assert process.poll() is None, f"{command}: the server has ended\n{tail(log)}"
        finally:
            end(process)


def wait_for(process, log):
    """Returns when a server answers."""
    began = time.monotonic()
    while time.monotonic() - began < ANSWER:
        assert process.poll() is None, f"the server has ended\n{tail(log)}"
        try:
            with urllib.request.urlopen("http://localhost:8000/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"no answer at port 8000\n{tail(log)}")


def end(process):
    """Ends a command as a terminal does."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=ANSWER)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
