"""The supervisor, over small programs in the place of server, orchestrator and trainer."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_rl.configs.launching import LocalLauncherConfig
from arcforge_rl.launch import supervisor
from arcforge_rl.launch.child import Child, Launched, ProcessPart
from arcforge_rl.launch.logs import Logs
from arcforge_rl.launch.supervisor import ENGINE, ORCHESTRATOR, TRAINER, Supervisor, finish
from support.waiting import wait_until

SERVER = """
import http.server, sys
class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *arguments): pass
class Again(http.server.HTTPServer):
    allow_reuse_address = True
server = Again(("127.0.0.1", int(sys.argv[1])), Well)
print(f"model at http://127.0.0.1:{server.server_port} in a browser", flush=True)
server.serve_forever()
"""
WAITS = "import time; time.sleep(60)"
RUNS = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "checkpoints" / "step-1").mkdir(parents=True, exist_ok=True)
print(f"run {folder}", flush=True)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "POLL", 0.01)
    monkeypatch.setattr(supervisor, "HEALTH", 0.1)
    monkeypatch.setattr(supervisor, "ENDING_SECONDS", 0.2)


class Run:
    """A run of programs; `lives` are its processes by role, `resumed` the folders that its trainers continued."""

    def __init__(self, folder: Path, programs: dict[str, list[str]], **options: Any) -> None:
        self.folder, self.programs = folder / "run", programs
        self.lives: dict[str, list[Child]] = {role: [] for role in programs}
        self.urls: list[str] = []
        self.resumed: list[Path | None] = []
        self.logs = Logs(folder)
        config = LocalLauncherConfig(**options)
        self.supervisor = Supervisor(config, self.logs, self.start, ORCHESTRATOR in programs)

    def start(self, role: str, url: str, resumed: Path | None) -> Launched:
        programs, lives = self.programs[role], self.lives[role]
        program = programs[min(len(lives), len(programs) - 1)]
        port = url.rpartition(":")[2] or "0"
        command = [sys.executable, "-S", "-c", program, port if role == ENGINE else str(self.folder)]
        lives.append(Child(ProcessPart(role, command, b"", dict(os.environ), None, self.logs.path(role), "/")))
        if "loading" in program:  # a busy machine takes its time before the first word
            wait_until(lambda: self.logs.path(role).stat().st_size)
        self.urls += [url] * (role == ENGINE)
        self.resumed += [resumed] * (role == TRAINER)
        return lives[-1]

    def during(self, work: Callable[[], None]) -> int:
        """Runs the supervisor, and meanwhile some work in a thread; afterwards nothing may be left."""
        errors: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=guarded)
        thread.start()
        try:
            code = self.supervisor.run()
        finally:
            thread.join()
            assert not errors, errors
            assert all(child.poll() is not None for lives in self.lives.values() for child in lives)
        return code

    def life(self, role: str, number: int) -> Child:
        """Waits for a life of a role."""
        wait_until(lambda: len(self.lives[role]) > number)
        return self.lives[role][number]


def kill(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)


def test_the_killed_are_started_again_and_the_server_keeps_its_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer continues its run, with another orchestrator if its own ended with it."""
    orchestrators = ["pass", WAITS]  # the first one ends in order, with the first trainer
    last = RUNS + "import os; time.sleep(60 * (not os.path.exists(folder / 'enough'))); print('trained'); sys.exit(0)"
    run = Run(tmp_path, {ENGINE: [SERVER], ORCHESTRATOR: orchestrators, TRAINER: [RUNS + WAITS, RUNS + WAITS, last]})

    def disturb() -> None:
        wait_until(lambda: run.supervisor.posts[ORCHESTRATOR].running is None and run.lives[ORCHESTRATOR])
        kill(run.life(ENGINE, 0))
        run.life(ENGINE, 1)
        wait_until(lambda: run.logs.run_dir)
        kill(run.life(TRAINER, 0))
        run.life(ORCHESTRATOR, 1)
        kill(run.life(ORCHESTRATOR, 1))
        run.life(ORCHESTRATOR, 2)
        (run.folder / "enough").touch()
        kill(run.life(TRAINER, 1))

    assert run.during(disturb) == 0
    assert run.urls == ["", *[run.supervisor.url] * 3], "another trainer has a server without later weights"
    assert run.resumed == [None, run.folder, run.folder]
    assert {role: post.restarts for role, post in run.supervisor.posts.items()} == {
        ENGINE: 1, ORCHESTRATOR: 1, TRAINER: 2
    }  # fmt: skip
    printed = capsys.readouterr()
    assert "the engine's server was ended by SIGKILL; restarting" in printed.err
    assert printed.out.endswith("trained\n") and printed.out.startswith("run ")
    assert {path.name for path in (run.folder / "launch").iterdir()} == {
        "engine.log",
        "orchestrator.log",
        "trainer.log",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("role", [ENGINE, ORCHESTRATOR])
def test_one_that_ends_too_often_ends_the_run_in_its_own_words(tmp_path: Path, role: str) -> None:
    fails = "import sys; print('error: no room', file=sys.stderr); sys.exit(2)"
    programs = {ENGINE: [SERVER], ORCHESTRATOR: [WAITS], TRAINER: [RUNS + WAITS]}
    run = Run(tmp_path, {**programs, role: [programs[role][0], fails]}, restarts=1)

    def disturb() -> None:
        wait_until(lambda: run.logs.run_dir)
        kill(run.life(role, 0))

    name = {ENGINE: "engine's server", ORCHESTRATOR: "orchestrator"}[role]
    words = (
        rf"the {name} ended with exit code 2, 2 times in a row \(launcher.restarts=1\): no room \(log: .*; resume=.*run"
    )
    with pytest.raises(ArcforgeError, match=words):
        run.during(disturb)


@pytest.mark.parametrize(
    ("server", "trainer", "words"),
    [
        ("print('error: checkpoint=x: no such folder'); raise SystemExit(2)", "",
         r"the engine's server ended with exit code 2 before it answered: checkpoint=x: no such folder \(log: "),
        ("print('loading', flush=True); import time; time.sleep(60)", "",
         r"the engine's server has not answered within launcher.start_seconds=0.5: loading \(log: "),
        (SERVER, "import os; print('step 0', flush=True); os.kill(os.getpid(), 9)",
         r"the trainer was ended by SIGKILL before its first checkpoint: step 0 \(log: "),
    ],
)  # fmt: skip
def test_an_early_end_is_told_in_one_line(tmp_path: Path, server: str, trainer: str, words: str) -> None:
    run = Run(tmp_path, {ENGINE: [server], TRAINER: [trainer]}, start_seconds=0.5 if "sleep" in server else 30.0)
    with pytest.raises(ArcforgeError, match=words):
        run.during(lambda: None)


def test_a_server_that_hangs_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enough = RUNS + "\nwhile not (folder / 'enough').exists(): time.sleep(0.01)"
    run, ahead = Run(tmp_path, {ENGINE: [SERVER], TRAINER: [enough]}, hang_seconds=600.0), [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], sleep=time.sleep)
    monkeypatch.setattr(supervisor, "time", clock)

    def disturb() -> None:
        wait_until(lambda: run.logs.run_dir)
        os.kill(run.life(ENGINE, 0).pid, signal.SIGSTOP)
        looked = run.supervisor._looked
        wait_until(lambda: run.supervisor._looked > looked)  # one look may have been answered before
        ahead[0] = 601.0
        run.life(ENGINE, 1)
        (run.folder / "enough").touch()

    assert run.during(disturb) == 0
    assert "the engine's server has not answered for 600 s" in capsys.readouterr().err


POLITE = (
    RUNS + "import signal; signal.signal(signal.SIGINT, lambda *_: sys.exit(0)); print('ready', flush=True)\n" + WAITS
)
DEAF = RUNS + "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True)\n" + WAITS


@pytest.mark.parametrize(
    ("trainer", "times", "stop_seconds", "code"),
    [(POLITE, 1, 30.0, 0), (DEAF, 1, 0.3, -signal.SIGKILL), (DEAF, 3, 30.0, -signal.SIGKILL)],
    ids=["saves itself", "too slow", "asked three times"],
)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all(
    tmp_path: Path, trainer: str, times: int, stop_seconds: float, code: int, how: signal.Signals
) -> None:
    run = Run(tmp_path, {ENGINE: [SERVER], TRAINER: [trainer]}, stop_seconds=stop_seconds)

    def disturb() -> None:
        wait_until(lambda: (run.folder / "launch" / "trainer.log").exists())
        wait_until(lambda: "ready" in (run.folder / "launch" / "trainer.log").read_text())
        ended = run.lives[TRAINER][0].poll
        for asked in range(times):
            os.kill(os.getpid(), how)
            wait_until(lambda asked=asked: run.supervisor._passed_on > asked or ended() is not None)

    assert run.during(disturb) == code


def test_ctrl_c_while_the_server_starts_ends_it(tmp_path: Path) -> None:
    run = Run(tmp_path, {ENGINE: [WAITS], TRAINER: [WAITS]})

    def disturb() -> None:
        run.life(ENGINE, 0)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.during(disturb)
    assert run.lives[TRAINER] == []


@pytest.mark.parametrize(
    ("written", "code", "error", "printed"),
    [
        ("step 1\nerror: no room\n", 2, ArcforgeError("no room"), "step 1\n"),
        ("step 1\nerror: this is a fault\n", 1, SystemExit(1), "step 1\n"),
        ("interrupted\n", 130, SystemExit(130), "interrupted\n"),
        ("step 1\n", -9, ArcforgeError("the trainer was ended by SIGKILL: step 1 (log: "), "step 1\n"),
        ("error: one of a rollout\nstep 1", 0, None, "error: one of a rollout\nstep 1\n"),
    ],
)
def test_the_command_ends_as_its_trainer(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    written: str,
    code: int,
    error: BaseException | None,
    printed: str,
) -> None:
    logs = Logs(tmp_path)
    logs.path(TRAINER).write_text(written)
    logs.follow()
    if error is None:
        finish(code, logs)
    else:
        with pytest.raises(type(error)) as raised:
            finish(code, logs)
        assert str(raised.value).startswith(str(error))
    assert capsys.readouterr().out == printed
    logs.remove_unless_settled()
    assert list(tmp_path.iterdir()) == []
